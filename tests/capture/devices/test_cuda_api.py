import threading

import pytest
import torch


def test_the_questions_that_scripts_ask(gpus):
    cuda = torch.cuda
    assert cuda.is_available()
    assert cuda.is_initialized()
    assert cuda.device_count() == 2
    assert cuda.current_device() == 0
    assert isinstance(cuda.get_device_name(1), str)
    assert cuda.get_device_capability() == (
        cuda.get_device_properties(0).major,
        cuda.get_device_properties(0).minor,
    )
    assert cuda.get_device_properties("cuda:1").total_memory > 2**30
    assert cuda.is_bf16_supported()
    assert torch.backends.cuda.is_built()
    assert torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() > 8000
    torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark
    assert torch.get_device_module("cuda") is cuda
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        cuda.set_device(2)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        cuda.get_device_properties(2)


@pytest.mark.skipif(not hasattr(torch, "accelerator"), reason="torch has no torch.accelerator")
def test_the_accelerator_is_the_gpu(gpus):
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.device_count() == 2
    torch.accelerator.synchronize()


def test_memory_is_counted_by_device(gpus):
    before = torch.cuda.memory_allocated(1)
    kept = torch.ones(1000, device="cuda:1")
    assert torch.cuda.memory_allocated(1) == before + 4000
    assert torch.cuda.memory_allocated("cuda:0") == 0
    assert torch.cuda.max_memory_allocated(1) >= before + 4000
    del kept
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated(1) == before
    torch.cuda.reset_peak_memory_stats()
    free, total = torch.cuda.mem_get_info()
    assert free <= total
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0
    assert isinstance(torch.cuda.memory_summary(), str)
    assert torch.cuda.memory_reserved() == 0


def test_streams_and_events(gpu):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        begin.record()
        made = torch.ones(2, device="cuda")
        end.record(stream)
    torch.cuda.current_stream().wait_stream(stream)
    made.record_stream(stream)
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) >= 0
    assert end.query()
    with pytest.raises(ValueError, match="must be recorded"):
        torch.cuda.Event().elapsed_time(end)


def test_random_state_of_the_gpu_is_its_own(gpu):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    torch.cuda.manual_seed(7)
    torch.cuda.manual_seed_all(8)
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
    assert state.dtype is torch.uint8
    assert torch.equal(torch.rand(4, device="cuda").cpu(), expected)
    with torch.random.fork_rng(devices=[0]):
        torch.rand(1, device="cuda")
    assert torch.cuda.initial_seed() == 8


def test_generators_draw_what_a_cpu_generator_draws(gpu):
    there = torch.Generator(device="cuda").manual_seed(5)
    here = torch.Generator().manual_seed(5)
    assert there.device == torch.device("cuda:0")
    assert here.device.type == "cpu"
    drawn = torch.randn(3, generator=there, device="cuda")
    assert drawn.is_cuda
    assert torch.equal(drawn.cpu(), torch.randn(3, generator=here))
    assert torch.equal(
        torch.randperm(5, generator=there, device="cuda").cpu(), torch.randperm(5, generator=here)
    )
    assert isinstance(there, torch.Generator)
    assert isinstance(here, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)


def test_mixed_precision_keeps_the_numbers(gpu):
    def train(*, amp):
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", enabled=amp)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
                assert torch.is_autocast_enabled("cuda") is amp
                loss = net(torch.ones(4, 3, device="cuda")).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses

    assert train(amp=True) == train(amp=False)


def test_an_overflow_skips_the_step(gpu):
    net = torch.nn.Linear(1, 1).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    before = net.weight.item()
    scaler.scale(net(torch.full((1, 1), float("inf"), device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert net.weight.item() == before
    assert scaler.get_scale() == 32768


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_old_names_of_mixed_precision(gpu):
    from torch.cuda.amp import GradScaler, autocast

    given = torch.ones(2, device="cuda", requires_grad=True)
    scaler = GradScaler()
    assert scaler.is_enabled()
    with autocast():
        loss = (given * 2).sum()
    scaler.scale(loss).backward()
    assert given.grad.is_cuda


def test_threads_that_start_inside_see_the_devices(gpus):
    torch.cuda.set_device(1)
    seen = []

    def work():
        seen.append((torch.cuda.current_device(), torch.ones(2, device="cuda").device))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(0, torch.device("cuda:0"))]


def test_profiler_ranges(gpu):
    with torch.cuda.nvtx.range("step"):
        torch.cuda.nvtx.range_push("inner")
        torch.cuda.nvtx.range_pop()
