"""Compares graphlint with a plain-Python model of autograd on random training programs.

    python benchmarks/model.py [--programs N] [--seed N]

Draws the programs of tests/programs, runs each in torch under capture, and judges it by all rules. Prints how
many findings of which code there were, how many programs were right, and each disagreement; ends with 1 when
there is one.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from programs.comparing import disagreements, told
from programs.drawing import programs
from programs.language import Program

SHOWN = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    different: set[str] = set()
    with tempfile.TemporaryDirectory() as scratch:

        @seed(options.seed)
        @settings(
            max_examples=options.programs,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(programs())
        def compare(program: Program) -> None:
            findings = told(program, Path(scratch) / "program.py")
            different.add(program.source)
            counts["programs"] += 1
            counts["without a finding"] += not findings
            counts.update(found.code for found in findings)
            said = disagreements(program, findings)
            counts["disagreements"] += bool(said)
            if said and counts["disagreements"] <= SHOWN:
                print(*said, program.source, sep="\n")

        compare()
    disagreements_seen = counts.pop("disagreements")
    print(f"{counts.pop('programs')} programs, {len(different)} different ones")
    print(f"{'disagreements':20} {disagreements_seen:6}")
    for name, number in sorted(counts.items()):
        print(f"{name:20} {number:6}")
    return 1 if disagreements_seen else 0


if __name__ == "__main__":
    sys.exit(main())
