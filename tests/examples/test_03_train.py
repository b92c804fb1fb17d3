"""A job that is killed and goes on."""

from pathlib import Path

from tests.examples.running import run_example


def test_a_killed_job_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    done = run_example(
        "03_train", *("--folder", folder, "--files", "30", "--steps", "12", "--vocab-size", "300")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    # Killed after step 8, with a checkpoint of step 5: steps 6 to 8 were trained on twice.
    assert "SIGKILL" in (folder / "broken" / "errors.txt").read_text()
    assert '"consumed_samples": 80' in done.stdout
    assert "rank 0 of 1 resumes from {'version': 1" in done.stdout
    samples = {
        file.name: [int(line.split()[0]) for line in file.read_text().splitlines()]
        for file in (folder / "broken").glob("samples-*.txt")
    }
    assert samples["samples-1-0.txt"] == list(range(80, 192))
    assert samples["samples-2-0.txt"] == [16 * step + i for step in range(8) for i in range(8)]
    assert (
        "   192 samples without interruption, 192 with one\nsame token stream: True" in done.stdout
    )
