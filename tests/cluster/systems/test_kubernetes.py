"""``cluster/kubernetes``: manifests by their schemas, and their commands run without Kubernetes."""

import importlib.metadata
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cloud.servers import free_port, wait_for_port
from tests.cluster.systems.needs import go_without
from tests.cluster.systems.runs import TRAIN, Run
from tests.cluster.systems.watched import FOLDERS, Watched, running

MANIFESTS = FOLDERS / "kubernetes"
#: The oldest release that is checked, and the newest.
VERSIONS = ["1.30", "1.36"]


def read(name: str) -> Any:
    return yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text())


def check(resource: dict[str, Any], version: str) -> None:
    """Fail unless Kubernetes knows every field of a resource."""
    try:
        import kubernetes_validate
    except ImportError:
        go_without("needs kubernetes-validate, of the extra 'test'")
    kubernetes_validate.validate(resource, version, strict=True)


def as_pod(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}


def find_pods(name: str) -> Iterator[dict[str, Any]]:
    """Yield the specifications of all pods of a manifest."""
    manifest = read(name)
    for job in manifest["spec"].get("replicatedJobs", [manifest]):
        yield job.get("template", job)["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["data", "build-job", "connect-job"])
def test_plain_manifests_are_known_to_kubernetes(name: str, version: str) -> None:
    check(read(name), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs_of_the_job_set_are_known_to_kubernetes(version: str) -> None:
    (job,) = read("train-jobset")["spec"]["replicatedJobs"]
    template = job["template"]
    check(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}} | template, version
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_pods_of_the_operator_are_known_to_kubernetes(role: str, version: str) -> None:
    check(as_pod(read("daskcluster")["spec"][role]["spec"]), version)


def test_the_check_finds_what_is_misspelt() -> None:
    job = read("build-job")
    job["spec"]["paralelism"] = job["spec"].pop("parallelism")
    with pytest.raises(Exception, match="paralelism"):
        check(job, VERSIONS[0])


def test_the_operator_takes_its_cluster() -> None:
    try:
        import jsonschema

        files = importlib.metadata.files("dask-kubernetes") or []
    except ImportError:  # or that of the package's files
        go_without("needs jsonschema, and pip install --no-deps dask-kubernetes for its schema")
    (path,) = (file for file in files if file.parts[-2:] == ("crds", "daskcluster.yaml"))
    definition = yaml.load(Path(str(path.locate())).read_text(), yaml.CSafeLoader)
    (version,) = definition["spec"]["versions"]
    cluster = read("daskcluster")
    group, kind = definition["spec"]["group"], definition["spec"]["names"]["kind"]
    assert (cluster["apiVersion"], cluster["kind"]) == (f"{group}/{version['name']}", kind)
    validator = jsonschema.Draft4Validator(version["schema"]["openAPIV3Schema"])
    validator.validate(cluster)
    cluster["spec"]["worker"]["replicas"] = "two"
    assert not validator.is_valid(cluster)


def test_numbers_that_must_agree() -> None:
    job = read("build-job")["spec"]
    (container,) = job["template"]["spec"]["containers"]
    (nodes,) = (item["value"] for item in container["env"] if item["name"] == "ZINDEX_NUM_NODES")
    assert int(nodes) == job["completions"] == job["parallelism"]
    (trainers,) = read("train-jobset")["spec"]["replicatedJobs"]
    spec = trainers["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert f"--nnodes {spec['completions']} " in container["args"][0]
    assert spec["completions"] == spec["parallelism"]
    # Every pod's claims and secrets are those of the other files.
    assert read("data")["metadata"]["name"] == "pretrain-data"
    for name in ("build-job", "connect-job", "train-jobset"):
        for pod in find_pods(name):
            claims = [item["persistentVolumeClaim"]["claimName"] for item in pod["volumes"][:1]]
            assert claims == ["pretrain-data"]


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    """Return the variables that a manifest sets by itself."""
    return {item["name"]: item["value"] for item in container.get("env", []) if "value" in item}


def test_pods_of_a_job_build(run: Run, golden: dict[str, str], watched: Watched) -> None:
    (pod,) = find_pods("build-job")
    (container,) = pod["containers"]
    command = [word.replace("/data", str(run.folder)) for word in container["command"]]
    variables = environment_of(container) | {"ZINDEX_NUM_NODES": "2", "ZINDEX_JOB_ID": "3f2a"}
    with ExitStack() as stack:
        pods = []
        for index in range(2):
            own = variables | {"JOB_COMPLETION_INDEX": str(index)}
            log = run.folder / f"pod-{index}.log"
            process = running(
                [*command, "--threads=1", "--nice=0"], watched.environment(**own), log
            )
            pods.append((stack.enter_context(process), log))
        for process, log in pods:
            assert process.wait(200) == 0, log.read_text()
        watched.check_end()
    assert run.digests() == golden


def make_secret(folder: Path) -> None:
    """Make the certificate as the README says."""
    lines = (MANIFESTS / "README.md").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("openssl req"))
    stop = next(number for number in range(start, len(lines)) if not lines[number].endswith("\\"))
    command = "\n".join(lines[start : stop + 1])
    subprocess.run(["bash", "-c", command], cwd=folder, check=True, capture_output=True)
    (folder / "cluster.key").chmod(0o400)  # the mode of the secret's files


def test_the_operators_pods_build(run: Run, golden: dict[str, str], watched: Watched) -> None:
    port = free_port()
    tls = run.folder / "tls"
    tls.mkdir(0o700)
    make_secret(tls)
    places = {
        "0.0.0.0:8786": f"127.0.0.1:{port}",
        "zindex-scheduler:8786": f"127.0.0.1:{port}",
        "127.0.0.1:8787": "127.0.0.1:0",
        "/tls": str(tls),
        "/data": str(run.folder),
        "$(DASK_WORKER_NAME)": "worker-0",
        "--nthreads=16": "--nthreads=1",
        "=32GiB": "=2GiB",
    }

    def here(text: str) -> str:
        for there, place in places.items():
            text = text.replace(there, place)
        return text

    cluster = read("daskcluster")["spec"]
    (job,) = find_pods("connect-job")
    containers = [cluster["scheduler"]["spec"], cluster["worker"]["spec"], job]
    with ExitStack() as stack:
        processes = []
        for number, spec in enumerate(containers):
            (container,) = spec["containers"]
            command = [here(word) for word in container.get("command") or container["args"]]
            variables = {name: here(text) for name, text in environment_of(container).items()}
            log = run.folder / f"pod-{number}.log"
            process = running(command, watched.environment(**variables), log)
            processes.append(stack.enter_context(process))
            if number == 0:
                wait_for_port(port, processes[0])
        assert processes[-1].wait(200) == 0, log.read_text()
    assert run.digests() == golden


@pytest.mark.slow
def test_pods_of_the_job_set_train(run: Run, golden: dict[str, str], watched: Watched) -> None:
    (pod,) = find_pods("train-jobset")
    (container,) = pod["containers"]
    (script,) = container["args"]
    # Verbatim, but for the places of data and train.py.
    script = script.replace("/data", str(run.folder)).replace(" train.py", f" {TRAIN}")
    variables = environment_of(container) | {
        "RANKS_PER_NODE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "ATTEMPT": "0",
    }
    with ExitStack() as stack:
        pods = []
        for index in range(2):
            own = variables | {"JOB_COMPLETION_INDEX": str(index)}
            log = run.folder / f"pod-{index}.log"
            process = running([*container["command"], script], watched.environment(**own), log)
            pods.append((stack.enter_context(process), log))
        for process, log in pods:
            assert process.wait(200) == 0, log.read_text()
        watched.check_end()
    run.check(golden, 2, "torchrun")
