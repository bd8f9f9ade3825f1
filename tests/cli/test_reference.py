"""`graphlint reference`: trains on the digits, goes on after Ctrl-C, samples; a mistake is one line and 2."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from graphlint.cli import reference
from graphlint.errors import UsageError
from graphlint.reference import options
from graphlint.reference.run import TrainingRun

FEW = ("--steps", "2", "--batch-size", "1000")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def trained(graphlint, tmp_path: Path) -> Path:
    result = graphlint("reference", "train", "--out", "run", *FEW)
    assert result.code == 0, result.err
    return tmp_path / "run"


def test_training_leaves_a_run_and_says_how_to_sample(graphlint, tmp_path):
    result = graphlint("reference", "train", "--out", "run", *FEW)
    assert result.code == 0, result.err
    first, second = result.out.splitlines()
    assert first == "trained 2 steps; sample with:"
    asked = '--checkpoint run/checkpoint.pt --text "a handwritten seven" --out seven.png'
    assert second == f"  graphlint reference sample {asked}"
    assert result.err.startswith("step 2 of 2: discriminator ")
    files = {str(path.relative_to(tmp_path)) for path in (tmp_path / "run").rglob("*.*")}
    assert files == {"run/checkpoint.pt", "run/metrics.jsonl", "run/samples/step-000002.png"}


def test_one_thread_trains(graphlint, monkeypatch):
    torch.set_num_threads(2)
    train, seen = TrainingRun.train, []

    def watched(run, **options):
        seen.append(torch.get_num_threads())
        return train(run, **options)

    monkeypatch.setattr(TrainingRun, "train", watched)
    assert graphlint("reference", "train", "--out", "run", *FEW).code == 0
    assert (seen, torch.get_num_threads()) == ([1], 2)


def test_quiet_and_the_options_of_a_step(graphlint, tmp_path):
    options = [
        "--fakes",
        "fresh",
        "--max-gradient-norm",
        "1",
        "--generator-learning-rate",
        "0.01",
        "--seed",
        "3",
    ]
    options += ["--discriminator-learning-rate", "0.02", "--autocast", "bfloat16"]
    result = graphlint("reference", "train", "--out", "run", *FEW, *options, "--quiet")
    assert (result.code, result.err) == (0, "")
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    stored = state["trainer"]["options"]
    assert (stored["fakes"], stored["max_gradient_norm"], stored["autocast"]) == ("fresh", 1.0, "bfloat16")
    assert (stored["generator_learning_rate"], stored["discriminator_learning_rate"]) == (0.01, 0.02)
    assert (state["run"]["batch_size"], state["run"]["seed"]) == (1000, 3)


def test_a_resumed_run_keeps_its_options_and_equals_one_that_was_not(graphlint, trained, tmp_path):
    result = graphlint("reference", "train", "--out", "run", "--resume", "--steps", "3")
    assert result.code == 0, result.err
    assert "trained 3 steps" in result.out
    whole = graphlint("reference", "train", "--out", "whole", "--steps", "3", "--batch-size", "1000")
    assert whole.code == 0
    assert (trained / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    again = graphlint("reference", "train", "--out", "run", "--resume")
    assert (again.code, again.out.splitlines()[0]) == (0, "trained 3 steps; sample with:")


def test_samples_are_drawn_of_each_text(graphlint, trained):
    arguments = ["--checkpoint", "run/checkpoint.pt", "--text", "a handwritten seven", "--text", "3"]
    assert graphlint("reference", "sample", *arguments, "--out", "a.png") == (0, "a.png\n", "")
    with Image.open("a.png") as picture:
        assert picture.format == "PNG"
        assert picture.height == 2 * 68 + 4
        eight = picture.width
    assert graphlint("reference", "sample", *arguments, "--out", "b.png", "--count", "1").code == 0
    with Image.open("b.png") as picture:
        assert picture.width == eight - 7 * 68
    for name, seed in (("c.png", "0"), ("d.png", "1")):
        assert graphlint("reference", "sample", *arguments, "--out", name, "--seed", seed).code == 0
    assert Path("a.png").read_bytes() == Path("c.png").read_bytes() != Path("d.png").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("reference",), "Missing command. (see graphlint reference --help)"),
        (("reference", "train"), "Missing option '--out'"),
        (("reference", "train", "--out", "x", "--steps", "0"), "0 is not in the range"),
        (("reference", "train", "--out", "x", "--fakes", "both"), "'both' is not one of 'reuse', 'fresh'"),
        (("reference", "train", "--out", "x", "--seed", "-1"), "-1 is not in the range"),
        (("reference", "train", "--out", "x", "--seed", str(2**63)), "is not in the range"),
        (
            (
                "reference",
                "sample",
                "--checkpoint",
                "C",
                "--text",
                "a 7",
                "--seed",
                str(2**63),
                "--out",
                "x.png",
            ),
            "is not in the range",
        ),
        (("reference", "train", "--out", "x", "--generator-learning-rate", "0"), "must be a positive number"),
        (
            ("reference", "train", "--out", "x", "--max-gradient-norm", "nan"),
            "must be a positive number, not nan",
        ),
        (
            ("reference", "train", "--out", "x", "--generator-device", "cuda:7"),
            "no device cuda:7 on this machine",
        ),
        (
            ("reference", "train", "--out", "x", "--discriminator-device", "abacus"),
            "no device abacus on this",
        ),
        (
            ("reference", "train", "--out", "x", "--resume"),
            "nothing to resume in x: it holds no checkpoint.pt",
        ),
        (("reference", "train", "--out", "file"), "can't write to file: "),
        (("reference", "train", "--out", "run"), "run holds a run already: resume it, or train in another"),
        (
            ("reference", "train", "--out", "run", "--resume", "--seed", "4"),
            "of another run: seed was 0, is now 4",
        ),
        (("reference", "train", "--out", "torn", "--resume"), "torn/checkpoint.pt: damaged"),
        (("reference", "sample", "--text", "x", "--out", "x.png"), "Missing option '--checkpoint'"),
        (
            ("reference", "sample", "--checkpoint", "no.pt", "--text", "a 7", "--out", "x.png"),
            "no.pt: can't be",
        ),
        (
            ("reference", "sample", "--checkpoint", "file", "--text", "a 7", "--out", "x.png"),
            "file: damaged, or no",
        ),
        (
            ("reference", "sample", "--checkpoint", "C", "--text", "qqq", "--out", "x.png"),
            "nothing in the text 'qqq'",
        ),
        (
            ("reference", "sample", "--checkpoint", "C", "--text", "", "--out", "x.png"),
            "nothing in the text ''",
        ),
        (
            ("reference", "sample", "--checkpoint", "C", "--text", "a 7", "--out", "x.jpg"),
            "x.jpg names no picture",
        ),
        (
            ("reference", "sample", "--checkpoint", "C", "--text", "a 7", "--out", "no/x.png"),
            "can't write the picture",
        ),
        (("reference", "sample", "--checkpoint", "C", "--text", "a 7", "--out", "C"), "is used twice"),
        (("reference", "sample", "--checkpoint", "C", "--out", "x.png"), "Missing option '--text'"),
    ],
)
def test_a_mistake_is_one_line(graphlint, begun, monkeypatch, arguments, words):
    monkeypatch.chdir(begun)
    result = graphlint(*(argument if argument != "C" else "run/checkpoint.pt" for argument in arguments))
    assert result.code == 2
    assert words in result.error_line
    assert not (begun / "x.png").exists()


def without_embedding(state: dict[str, Any]) -> None:
    del state["recipe"]["embedding"]


def other_embedding(state: dict[str, Any]) -> None:
    state["recipe"]["embedding"] = {"kind": state["recipe"]["embedding"]["kind"]}


def odd_noise(state: dict[str, Any]) -> None:
    state["recipe"]["noise_size"] = "many"


def without_average(state: dict[str, Any]) -> None:
    del state["trainer"]["average"]


def odd_trainer(state: dict[str, Any]) -> None:
    state["trainer"] = 5


@pytest.mark.parametrize(
    "spoil", [without_embedding, other_embedding, odd_noise, without_average, odd_trainer]
)
def test_a_checkpoint_that_lacks_something_is_one_line(graphlint, begun, monkeypatch, tmp_path, spoil):
    monkeypatch.chdir(tmp_path)
    state = torch.load(begun / "run" / "checkpoint.pt", weights_only=True)
    spoil(state)
    torch.save(state, "checkpoint.pt")
    sampled = graphlint(
        "reference", "sample", "--checkpoint", "checkpoint.pt", "--text", "a 7", "--out", "x.png"
    )
    resumed = graphlint("reference", "train", "--out", ".", "--resume", "--steps", "9")
    for result in (sampled, resumed):
        assert result.code == 2
        assert "checkpoint.pt: damaged, " in result.error_line
    assert not Path("x.png").exists()


def test_the_largest_seed_is_the_one_that_the_trainer_takes():
    assert reference.MAX_SEED == options.MAX_SEED
    torch.Generator().manual_seed(options.MAX_SEED)


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """A directory with a finished run, a torn checkpoint and a file that is neither."""
    from graphlint.cli.main import main

    folder = tmp_path_factory.mktemp("begun")
    assert main(["reference", "train", "--out", str(folder / "run"), *FEW, "--quiet"]) == 0
    (folder / "torn").mkdir()
    (folder / "torn" / "checkpoint.pt").write_bytes((folder / "run" / "checkpoint.pt").read_bytes()[:5000])
    (folder / "file").write_text("")
    return folder


def test_ctrl_c_says_how_to_go_on(graphlint, tmp_path, monkeypatch):
    real = TrainingRun._report

    def press(run: TrainingRun, *arguments: object) -> None:
        real(run, *arguments)
        if run.trainer.steps == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingRun, "_report", press)
    result = graphlint("reference", "train", "--out", "run", *FEW, "--quiet")
    assert (result.code, result.out) == (130, "")
    line = "graphlint: interrupted after step 1; go on with: graphlint reference train --out run --resume\n"
    assert result.err == line
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert graphlint("reference", "train", "--out", "run", "--resume", "--quiet").code == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from graphlint.cli.main import main
raise SystemExit(main({arguments!r}))
"""


@pytest.mark.parametrize("name", ["sklearn", "PIL"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["reference", "train", "--out", "run"],
        ["reference", "sample", "--checkpoint", "c.pt", "--text", "a 7", "--out", "x.png"],
    ],
)
def test_a_missing_extra_is_one_line(tmp_path, name, arguments):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(name=name, arguments=arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    words = f"needs scikit-learn and Pillow, and {name} is missing; install torch-graphlint[reference]"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"graphlint: error: graphlint reference {words}\n"
    assert list(tmp_path.iterdir()) == []


def test_help_needs_no_torch(tmp_path):
    source = "import sys; from graphlint.cli.main import main; main(['reference', 'train', '--help']); "
    source += "print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "--generator-device DEVICE" in done.stdout
    assert done.stdout.endswith("\nFalse\n")


def test_the_command_is_audited_like_any_program(tmp_path):
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "graphlint",
                "run",
                "--level",
                "full",
                "--simulate",
                "cuda",
                "-m",
                "graphlint",
            ),
            *("reference", "train", "--out", "run", "--generator-device", "cuda:0", *FEW),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "no findings in 2 steps (all at full level)" in done.stderr
    assert "cuda:0 simulated on the CPU" in done.stderr


def test_missing_libraries_are_told_from_the_api():
    from graphlint.reference import digits

    assert digits.require_extra() is None
    with pytest.raises(UsageError, match="nothing in the text 'qqq'"):
        digits._embedded(digits.CaptionedDigits().embedding, ["a 7", "qqq"])
