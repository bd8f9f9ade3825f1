"""What `torch.cuda` and `torch.accelerator` answer under simulation; imports torch.

Streams run at once, so everything that waits has nothing to wait for. Memory figures count the storages on
the simulated device. The random state of a device is a generator of its own that nothing draws from:
numbers "on the GPU" come from the CPU's generator, so that a run has the values of a plain CPU run.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import torch

from graphlint.capture.devices.generators import make_generator_type
from graphlint.capture.devices.labels import label_of
from graphlint.capture.devices.legacy import NAMES, CudaTensorType
from graphlint.capture.devices.mode import SimulationMode
from graphlint.capture.devices.patches import Patches

TOTAL_BYTES = 16 * 2**30
CAPABILITY = (8, 0)
DEVICE_NAME = "Simulated CUDA device"


class Event:
    """Marks a moment; all work before it is done by then."""

    def __init__(self, *args: object, **kwargs: object) -> None:  # noqa: ARG002 (timing and the like)
        self.recorded_at_ns: int | None = None

    def record(self, stream: object = None) -> None:  # noqa: ARG002 (all streams are one)
        """Notes the time."""
        self.recorded_at_ns = time.perf_counter_ns()

    def elapsed_time(self, end_event: "Event") -> float:
        """Returns the milliseconds from this event to `end_event`."""
        if self.recorded_at_ns is None or end_event.recorded_at_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event.recorded_at_ns - self.recorded_at_ns) / 1e6

    def query(self) -> bool:
        """Tells that the work is done."""
        return True

    def synchronize(self) -> None:
        """Returns at once."""

    def wait(self, stream: object = None) -> None:
        """Returns at once."""


class Stream:
    """A queue of work that is done as soon as it is given."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: object) -> None:  # noqa: ARG002
        index = torch.cuda._utils._get_device_index(device, optional=True)
        self.device = torch.device("cuda", index)
        self.device_index = index
        self.priority = priority
        self.cuda_stream = 0
        self.stream_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def synchronize(self) -> None:
        """Returns at once."""

    def wait_stream(self, stream: object) -> None:
        """Returns at once."""

    def wait_event(self, event: object) -> None:
        """Returns at once."""

    def query(self) -> bool:
        """Tells that all work is done."""
        return True

    def is_capturing(self) -> bool:
        """Tells that no graph of GPU work is being captured."""
        return False

    def record_event(self, event: Event | None = None) -> Event:
        """Records `event`, or a new one, and returns it."""
        event = event or Event()
        event.record()
        return event


def patch_cuda(patches: Patches, mode: SimulationMode) -> None:
    """Makes `torch.cuda` and `torch.accelerator` answer for the simulated machine."""
    generator_type = make_generator_type(mode.machine)
    patches.set(torch, "Generator", generator_type)
    generators = tuple(generator_type(device=f"cuda:{index}") for index in range(mode.machine.count))
    start = {"_lazy_init": _nothing, "_lazy_call": _call_now, "is_initialized": _yes, "init": _nothing}
    answers = {**start, **_queries(mode), **_device_choice(mode), **_work()}
    memory = {**start, **_memory(mode)}
    patches.set(torch.cuda, "_initialized", value=True)
    patches.set(torch.cuda, "default_generators", generators)
    for owner in (torch.cuda, torch.cuda.random):
        patches.set_many(owner, answers)
    for owner in (torch.cuda, torch.cuda.memory):
        patches.set_many(owner, memory)
    patches.set_many(torch.cuda.nvtx, dict.fromkeys(("mark", "range_push", "range_pop"), _zero))
    patches.set_many(torch.cuda.nvtx, {"range_start": _zero, "range_end": _nothing, "range": _silent_range})
    # torch checks the type of the stream before a function mode is asked.
    patches.set(torch.Tensor, "record_stream", _nothing)
    _patch_accelerator(patches, mode)
    _patch_types(patches, mode)


def _queries(mode: SimulationMode) -> dict[str, Callable[..., Any]]:
    machine = mode.machine

    def properties(device: Any = None) -> SimpleNamespace:
        machine.index(device)
        return SimpleNamespace(
            name=DEVICE_NAME,
            major=CAPABILITY[0],
            minor=CAPABILITY[1],
            total_memory=TOTAL_BYTES,
            multi_processor_count=64,
            warp_size=32,
            max_threads_per_multi_processor=2048,
            is_integrated=False,
            is_multi_gpu_board=False,
        )

    return {
        "is_available": _yes,
        "device_count": lambda: machine.count,
        "get_device_name": lambda device=None: properties(device).name,
        "get_device_properties": properties,
        "get_device_capability": lambda device=None: (properties(device).major, properties(device).minor),
        "get_arch_list": lambda: ["sm_80"],
        "can_device_access_peer": lambda device, peer_device: (
            machine.index(device) != machine.index(peer_device)
        ),
        "is_bf16_supported": _yes,
        "is_tf32_supported": _yes,
        "is_current_stream_capturing": _no,
        "utilization": _zero,
        "temperature": _zero,
        "power_draw": _zero,
        "clock_rate": _zero,
        "get_sync_debug_mode": _zero,
        "set_sync_debug_mode": _nothing,
    }


def _device_choice(mode: SimulationMode) -> dict[str, Callable[..., Any]]:
    machine = mode.machine

    def set_device(device: Any) -> None:
        index = device if isinstance(device, int) else machine.index(device)
        if index >= 0:
            machine.check(index)
            machine.current = index

    def exchange(index: int) -> int:
        before = machine.current
        set_device(index)
        return before if index >= 0 else -1

    return {
        "current_device": lambda: machine.current,
        "set_device": set_device,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
    }


def _work() -> dict[str, Any]:
    return {
        "synchronize": _nothing,
        "ipc_collect": _nothing,
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": Event,
        "stream": _stream_context,
        "StreamContext": _stream_context,
        "set_stream": _nothing,
        "current_stream": lambda device=None: Stream(device),
        "default_stream": lambda device=None: Stream(device),
    }


def _memory(mode: SimulationMode) -> dict[str, Callable[..., Any]]:
    table, machine = mode.table, mode.machine

    def name(device: Any) -> str:
        return f"cuda:{machine.index(device)}"

    def now(device: Any = None) -> int:
        return table.bytes_on(name(device))

    def peak(device: Any = None) -> int:
        return table.peak_bytes_on(name(device))

    def reset(device: Any = None) -> None:
        table.reset_peak(name(device))

    def summary(device: Any = None, *args: object, **kwargs: object) -> str:  # noqa: ARG001 (abbreviated)
        return f"{name(device)}: {now(device)} bytes allocated"

    def stats(device: Any = None) -> OrderedDict[str, int]:
        return OrderedDict(
            (f"{kind}_bytes.all.{when}", count(device))
            for kind in ("active", "allocated", "reserved")
            for when, count in (("current", now), ("peak", peak))
        )

    used = dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"), now)
    peaks = dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), peak)
    resets = dict.fromkeys(
        (
            "reset_peak_memory_stats",
            "reset_max_memory_allocated",
            "reset_max_memory_cached",
            "reset_accumulated_memory_stats",
        ),
        reset,
    )
    return {
        **used,
        **peaks,
        **resets,
        "memory_stats": stats,
        "memory_summary": summary,
        "mem_get_info": lambda device=None: (TOTAL_BYTES - now(device), TOTAL_BYTES),
        "memory_snapshot": lambda *args, **kwargs: [],  # noqa: ARG005
        "empty_cache": _nothing,
        "set_per_process_memory_fraction": _nothing,
    }


def _patch_accelerator(patches: Patches, mode: SimulationMode) -> None:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:
        return
    choice = _device_choice(mode)
    memory = _memory(mode)
    patches.set_many(
        accelerator,
        {
            "is_available": _yes,
            "device_count": lambda: mode.machine.count,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),  # noqa: ARG005
            "current_device_index": choice["current_device"],
            "current_device_idx": choice["current_device"],
            "set_device_index": choice["set_device"],
            "set_device_idx": choice["set_device"],
            "device_index": torch.cuda.device,
            "synchronize": _nothing,
            "current_stream": lambda device=None: Stream(device),
            "set_stream": _nothing,
            "get_memory_info": memory["mem_get_info"],
            **memory,
        },
    )


def _patch_types(patches: Patches, mode: SimulationMode) -> None:
    def place(tensor: torch.Tensor) -> torch.Tensor:
        mode.table.put(tensor, label_of(mode.machine.name("cuda")))
        return tensor

    patches.set_many(torch.cuda, {name: CudaTensorType(name, place, mode.device_of) for name in NAMES})


def _call_now(callback: Callable[[], Any], **kwargs: object) -> None:  # noqa: ARG001 (seed_all and the like)
    callback()


@contextmanager
def _stream_context(stream: object) -> Iterator[object]:
    yield stream


@contextmanager
def _silent_range(*args: object, **kwargs: object) -> Iterator[None]:  # noqa: ARG001
    yield


def _yes(*args: object, **kwargs: object) -> bool:  # noqa: ARG001
    return True


def _no(*args: object, **kwargs: object) -> bool:  # noqa: ARG001
    return False


def _zero(*args: object, **kwargs: object) -> int:  # noqa: ARG001
    return 0


def _nothing(*args: object, **kwargs: object) -> None:
    """Does nothing: the work is done already, or there is none."""
