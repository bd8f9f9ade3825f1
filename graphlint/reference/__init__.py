"""The corrected split-device GAN trainer: the reference that graphlint is validated against.

A step that trains a generator on one device against a discriminator on another without a fault that graphlint
knows, and what belongs around it. Imports `errors`, torch and the libraries of the extra `reference`; nothing
of graphlint imports it but the command line.
"""

from graphlint.reference.options import RunOptions, TrainerOptions
from graphlint.reference.run import SampleTexts, TrainingRun
from graphlint.reference.trainer import SplitDeviceGANTrainer, StepLosses

__all__ = [
    "RunOptions",
    "SampleTexts",
    "SplitDeviceGANTrainer",
    "StepLosses",
    "TrainerOptions",
    "TrainingRun",
]
