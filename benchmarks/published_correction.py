"""The correction that was published for the first broken loop, told anew for any two networks.

It trains, and pays for it: the generator runs twice a step, the discriminator's loss runs back through it,
the text embeddings travel four times, rubbish is collected in every step, and a short last batch breaks it.
Two things differ from what was published: a sigmoid stands in front of its loss, since these discriminators
give logits, and nothing is saved on the way.
"""

import gc

import torch
from torch import Tensor, nn

from graphlint.reference.options import TrainerOptions


class PublishedCorrection:
    """Trains the generator on `device` against the discriminator on the CPU, `batch_size` pairs at a time."""

    def __init__(
        self,
        generator: nn.Module,
        discriminator: nn.Module,
        *,
        device: str,
        noise_size: int,
        batch_size: int,
        options: TrainerOptions,
        cleans_up: bool = True,
    ) -> None:
        self.generator = generator.to(device)
        self.discriminator = discriminator.to("cpu")
        self.device = device
        self.noise_size = noise_size
        self.batch_size = batch_size
        self.cleans_up = cleans_up
        self.adversarial_loss = nn.BCELoss()
        self.generator_optimizer = torch.optim.Adam(
            generator.parameters(), lr=options.generator_learning_rate, betas=options.betas
        )
        self.discriminator_optimizer = torch.optim.Adam(
            discriminator.parameters(), lr=options.discriminator_learning_rate, betas=options.betas
        )

    def step(self, text_embeddings: Tensor, images: Tensor) -> None:
        self.train_discriminator(text_embeddings, images)
        self.train_generator(text_embeddings)
        if self.cleans_up:
            gc.collect()
            torch.cuda.empty_cache()

    def train_discriminator(self, text_embeddings: Tensor, images: Tensor) -> None:
        self.discriminator_optimizer.zero_grad()
        real_images = images.to("cpu")
        real_labels = torch.ones(real_images.size(0)).to("cpu")
        real_text = text_embeddings.to("cpu")
        real_predictions = torch.sigmoid(self.discriminator(real_images, real_text))
        real_loss = self.adversarial_loss(real_predictions, real_labels)
        fake_predictions = self.judged_fakes(text_embeddings)
        fake_labels = torch.zeros(fake_predictions.size(0)).to("cpu")
        fake_loss = self.adversarial_loss(fake_predictions, fake_labels)
        discriminator_loss = real_loss + fake_loss
        discriminator_loss.backward()
        self.discriminator_optimizer.step()

    def train_generator(self, text_embeddings: Tensor) -> None:
        self.generator_optimizer.zero_grad()
        fake_predictions = self.judged_fakes(text_embeddings)
        real_labels = torch.ones(self.batch_size).to("cpu")
        generator_loss = self.adversarial_loss(fake_predictions, real_labels).to(self.device)
        generator_loss.backward()
        self.generator_optimizer.step()

    def judged_fakes(self, text_embeddings: Tensor) -> Tensor:
        text = text_embeddings.to(self.device)
        noise = torch.randn(self.batch_size, self.noise_size).to(self.device)
        fake_images = self.generator(noise, text).to("cpu")
        text = text.to("cpu")
        return torch.sigmoid(self.discriminator(fake_images, text))
