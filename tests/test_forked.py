"""Commands in forks behave as those in new interpreters."""

import signal
import sys
import textwrap
from pathlib import Path

import pytest

from tests.forked import Forked, run_python

SHOW = """\
import atexit, sys, threading, time
print(__name__, sys.argv, input(), "torch" in sys.modules)
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
"""


def test_code_modules_and_scripts(tmp_path: Path) -> None:
    script = tmp_path / "script_of_a_test.py"
    script.write_text(SHOW)
    for command, name in (
        (("-c", SHOW), "-c"),
        (("-m", script.stem), str(script)),
        (("-W", "ignore", str(script)), str(script)),
    ):
        with Forked(*command, "one", cwd=tmp_path) as process:
            process.stdin.write("said\n")
            printed, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
        assert printed == f"__main__ {[name, 'one']} said True\nthread\nat exit\n"


@pytest.mark.parametrize(
    ("code", "returncode", "errors"),
    [
        ("import sys; sys.exit('Error: no')", 1, "Error: no\n"),
        ("import sys; sys.exit(7)", 7, ""),
        ("import os; os._exit(3)", 3, ""),
        ("assert False, 'a reason'", 1, "AssertionError: a reason\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_ends(code: str, returncode: int, errors: str) -> None:
    done = run_python("-c", code)
    assert done.returncode == returncode
    assert done.stderr.endswith(errors)
    assert bool(done.stderr) == bool(errors)


def test_environment(tmp_path: Path) -> None:
    done = run_python(
        "-c", "import os; print(dict(os.environ), os.getcwd())", env={"A": "b"}, cwd=tmp_path
    )
    assert done.stdout == f"{{'A': 'b'}} {tmp_path}\n"


def test_python_commands_of_a_command_are_forks_and_its_children() -> None:
    child = "import os, sys; print(input(), os.getppid(), 'torch' in sys.modules); sys.exit(5)"
    code = textwrap.dedent(
        f"""\
        import os, signal, subprocess, sys
        command = [sys.executable, "-u", "-c", {child!r}]
        for _ in range(2):
            done = subprocess.run(command, input="said", capture_output=True, text=True)
            print(done.stdout == f"said {{os.getpid()}} True\\n", done.returncode, done.stderr)
        sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
        sleeping.kill()
        print(sleeping.wait() == -signal.SIGKILL, subprocess.run(["false"]).returncode)
        """
    )
    done = run_python("-c", code, forks=True)
    assert (done.stdout, done.stderr) == ("True 5 \nTrue 5 \nTrue 1\n", "")


def test_children_of_every_start_method(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent(
            """\
            import multiprocessing, sys
            def work(number):
                return number + 1, "torch" in sys.modules
            if __name__ == "__main__":
                for method in ("fork", "forkserver", "spawn"):
                    with multiprocessing.get_context(method).Pool(1) as pool:
                        print(method, *pool.apply(work, (1,)))
            """
        )
    )
    done = run_python(str(script))
    assert done.stdout == "fork 2 True\nforkserver 2 False\nspawn 2 False\n", done.stderr


def test_the_server_has_one_thread() -> None:
    code = "import os; print(len(os.listdir(f'/proc/{os.getppid()}/task')))"
    if sys.platform == "linux":
        assert run_python("-c", code).stdout == "1\n"
