"""What only a process of its own shows: workers, signals, forks, the environment, the last outputs.

Each of these imports torch anew, so they are few and check several things each.
"""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

TRAIN = """
    import torch
    from torch import nn
    torch.set_num_threads(1)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train(inputs):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
"""


def start(directory: Path, source: str, *options: str, **streams: int) -> "subprocess.Popen[str]":
    (directory / "train.py").write_text(textwrap.dedent(source))
    return subprocess.Popen(
        [sys.executable, "-m", "graphlint", "run", *options, "train.py"],
        cwd=directory,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


def finish(process: "subprocess.Popen[str]", stdin: str | None = None) -> tuple[int, str, str]:
    out, err = process.communicate(stdin, timeout=120)
    return process.returncode, out or "", err or ""


WORKERS = f"""
    import multiprocessing
    {TRAIN}
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 2
        def __getitem__(self, index):
            return torch.full((2,), float(index))
    def main():
        for context in ("fork", "spawn"):
            loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context=context)
            for batch in loader:
                train(batch)
                print(context, batch.tolist())
    if __name__ == "__main__":
        main()
    else:
        print("again as", __name__, flush=True)
"""


def test_data_loader_workers_under_fork_and_spawn(tmp_path: Path) -> None:
    code, out, err = finish(start(tmp_path, WORKERS))
    assert code == 0, err
    assert sorted(out.splitlines()) == [
        "again as __mp_main__",
        "fork [[0.0, 0.0]]",
        "fork [[1.0, 1.0]]",
        "spawn [[0.0, 0.0]]",
        "spawn [[1.0, 1.0]]",
    ]
    assert err.startswith("graphlint: no findings in 4 steps")


def test_environment_stdin_and_a_signal_from_outside(tmp_path: Path) -> None:
    source = f"""
    import os, sys, time
    print("torch" in sys.modules, sys.stdin.readline().strip())
    os.environ["OMP_NUM_THREADS"] = "1"
    {TRAIN.replace("torch.set_num_threads(1)", "print(torch.get_num_threads())")}
    train(torch.ones(1, 2))
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("saved", flush=True)
    """
    process = start(tmp_path, source, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("from the terminal\n")
    process.stdin.flush()
    assert [process.stdout.readline() for _ in range(3)] == ["False from the terminal\n", "1\n", "ready\n"]
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert (code, out) == (3, "saved\n")
    assert err.startswith("graphlint: no findings in 1 step")
    assert "train.py was ended by SIGTERM" in err


def test_a_file_that_shadows_what_torch_imports_is_the_scripts_failure(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("print('shadow')\nraise RuntimeError('not that queue')\n")
    code, out, err = finish(start(tmp_path, "import torch\n"))
    assert (code, out) == (3, "shadow\n")
    assert err.count("Traceback (most recent call last)") == 1
    assert err.endswith(
        "RuntimeError: not that queue\n\n"
        "graphlint: nothing was recorded: the script's import of torch failed\n"
    )


def test_a_failed_import_of_torch_that_the_script_lives_with_is_not_clean(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("raise RuntimeError('not that queue')\n")
    source = """
    try:
        import torch
    except RuntimeError:
        print("without")
    """
    code, out, err = finish(start(tmp_path, source))
    assert (code, out) == (2, "without\n")
    assert err == "graphlint: error: nothing was recorded: the script's import of torch failed\n"


def test_last_outputs_and_a_forked_copy(tmp_path: Path) -> None:
    source = f"""
    import atexit, os, sys, threading, time
    {TRAIN}
    train(torch.ones(1, 2))
    child = os.fork()
    if child == 0:
        sys.exit(7)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    atexit.register(lambda: print("at exit", sys.modules["__main__"].__file__.endswith("train.py")))
    def late():
        time.sleep(0.5)
        print("thread", sys.modules["__main__"].train is train)
    threading.Thread(target=late).start()
    print("buffered to the end")
    """
    process = start(tmp_path, source, "--trace", "t.jsonl", stderr=subprocess.STDOUT)
    code, out, _ = finish(process)
    assert code == 0, out
    lines = out.splitlines()
    assert lines[:2] == ["child 7", "buffered to the end"]
    assert lines[2].startswith("graphlint: no findings in 1 step")
    assert out.count("no findings") == 1
    assert lines[-2:] == ["thread True", "at exit True"]
    assert (tmp_path / "t.jsonl").read_text().count('"record":"header"') == 1
