"""Prints what a capture costs, as ratios to the plain step, all variants interleaved in one process.

    python benchmarks/overhead.py [--rounds N] [--threads N] [--workloads abc] [--skip-debug-mode]

For each workload: watch and full level, torch's anomaly mode and its DebugMode; then a whole run of 200
steps at the default settings, the peak memory of a process over that of a plain one, and whether as many
tensors are alive after each step. Times are CPU times of the thread that works: a busy machine disturbs them
less.
"""

import argparse
import gc
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from workloads import WORKLOADS, Step, Workload

RUN_STEPS = 200
BARS = {
    "a": {"watch": 1.10, "run": 1.10},
    "b": {"watch": 1.02, "full": 1.3},
    "c": {"watch": 1.02, "full": 1.3},
}
"""The most that each may cost; (a) at the full level may cost what anomaly mode costs."""

MEMORY_BAR = 1.05

BLOCK_STEPS = {"a": 10, "b": 3, "c": 3}


def session(level: str) -> AbstractContextManager[object]:
    from graphlint.capture.options import CaptureOptions
    from graphlint.capture.session import Session

    return Session(CaptureOptions(level=level))


@contextmanager
def debug_mode() -> Iterator[None]:
    from torch.utils._debug_mode import DebugMode

    with DebugMode():
        yield


VARIANTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "watch": lambda: session("watch"),
    "full": lambda: session("full"),
    "anomaly": torch.autograd.detect_anomaly,
    "debug": debug_mode,
}


def step_seconds(step: Step, count: int) -> list[float]:
    """Returns the CPU seconds of each of `count` steps."""
    seconds = []
    for _ in range(count):
        start = time.thread_time()
        step()
        seconds.append(time.thread_time() - start)
    return seconds


def ratios(workload: Workload, rounds: int, names: list[str]) -> tuple[float, dict[str, float]]:
    """Returns the plain step's median seconds, and each variant's ratio to the plain blocks around it."""
    step = workload.make()
    count = BLOCK_STEPS[workload.name]
    step_seconds(step, 5)
    by_round: dict[str, list[float]] = {name: [] for name in names}
    plain: list[float] = []
    for _ in range(rounds):
        for name in names:
            around = step_seconds(step, count)
            with VARIANTS[name]():
                step_seconds(step, 2)
                within = step_seconds(step, count)
            around += step_seconds(step, count)
            plain += around
            by_round[name].append(statistics.median(within) / statistics.median(around))
    medians = {name: statistics.median(found) for name, found in by_round.items()}
    return statistics.median(plain), medians


def run_ratio(workload: Workload, rounds: int) -> float:
    """Returns the median ratio of a run of 200 steps at the default level, entering and leaving included."""
    step = workload.make()
    step_seconds(step, 5)
    found = []
    for _ in range(rounds):
        plain = sum(step_seconds(step, RUN_STEPS))
        start = time.thread_time()
        with session("auto"):
            step_seconds(step, RUN_STEPS)
        found.append((time.thread_time() - start) / plain)
    return statistics.median(found)


def live_tensors(workload: Workload, level: str | None, steps: int = 6) -> list[int]:
    """Returns the number of live tensors after each step."""
    step = workload.make()
    counts = []
    with session(level) if level else nullcontext():
        for _ in range(steps):
            step()
            gc.collect()
            counts.append(sum(1 for item in gc.get_objects() if isinstance(item, torch.Tensor)))
    return counts


def peak_ratio(workload: Workload, level: str) -> float:
    """Returns the peak resident memory of a process of 200 steps under capture, over that of a plain one."""
    return _peak_of_process(workload, level) / _peak_of_process(workload, "plain")


def _peak_of_process(workload: Workload, level: str) -> int:
    command = [sys.executable, __file__, "--child", level, "--workloads", workload.name]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def child(name: str, level: str) -> None:
    """Runs some steps and prints the peak resident memory of this process, in KiB (bytes on macOS)."""
    (workload,) = (workload for workload in WORKLOADS if workload.name == name)
    with nullcontext() if level == "plain" else session(level):
        step = workload.make()
        step_seconds(step, RUN_STEPS if name == "a" else 30)
    print(_peak_resident())


def _peak_resident() -> int:
    """Returns this process's peak; Linux lets ru_maxrss start from that of the parent, VmHWM not."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def verdict(value: float, bar: float | None) -> str:
    if bar is None:
        return f"{value:6.3f}"
    return f"{value:6.3f} ({'meets' if value <= bar else 'MISSES'} {bar:.2f})"


def report(workload: Workload, rounds: int, names: list[str]) -> None:
    plain, found = ratios(workload, rounds, names)
    bars = dict(BARS[workload.name])
    if workload.name == "a" and "anomaly" in found:
        bars["full"] = found["anomaly"]
    print(f"({workload.name}) {workload.title}: {plain * 1000:.2f} ms a step of CPU time")
    for name in names:
        print(f"    {name:8s} {verdict(found[name], bars.get(name))}")
    whole = run_ratio(workload, max(3, rounds // 4))
    print(f"    run      {verdict(whole, bars.get('run'))}  {RUN_STEPS} steps, default")
    for level in ("auto", "full"):
        print(f"    {level:8s} peak memory {verdict(peak_ratio(workload, level), MEMORY_BAR)}")
    plain_live = live_tensors(workload, None)
    for level in ("watch", "full"):
        same = live_tensors(workload, level) == plain_live
        print(f"    {level:8s} live tensors after each step {'equal' if same else 'DIFFER'}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workloads", default="abc")
    parser.add_argument("--skip-debug-mode", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    if options.child:
        child(options.workloads, options.child)
        return 0
    names = [name for name in VARIANTS if not (name == "debug" and options.skip_debug_mode)]
    setting = f"{options.threads} thread(s), median of {options.rounds} interleaved rounds"
    print(f"torch {torch.__version__}, {setting}")
    for workload in WORKLOADS:
        if workload.name in options.workloads:
            report(workload, options.rounds, names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
