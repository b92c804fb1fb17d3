"""Manifests of Kubeflow, Ray and SkyPilot: their fields, and their commands as plain processes.

Each process has the variables that the operator sets.
"""

import ast
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cloud.servers import free_port
from tests.cluster.systems.needs import go_without
from tests.cluster.systems.runs import TRAIN, Run
from tests.cluster.systems.test_kubernetes import VERSIONS, as_pod, check, environment_of, read
from tests.cluster.systems.watched import FOLDERS, Watched, running

SKY = FOLDERS / "skypilot" / "train.yaml"

#: The fields that a manifest may have, from the definitions of MPI operator 0.6, KubeRay 1.4 and
#: SkyPilot 0.14; {} is anything, and pods are checked against the schemas of Kubernetes.
_ROLE: dict[str, Any] = {"replicas": int, "restartPolicy": str, "template": {"spec": {}}}
_GROUP: dict[str, Any] = {"rayStartParams": {}, "template": {"spec": {}}}
_RESOURCE: dict[str, Any] = {"apiVersion": str, "kind": str, "metadata": {"name": str}}
FIELDS: dict[str, dict[str, Any]] = {
    "mpijob": _RESOURCE
    | {
        "spec": {
            "slotsPerWorker": int,
            "runPolicy": {"cleanPodPolicy": str, "backoffLimit": int},
            "sshAuthMountPath": str,
            "mpiReplicaSpecs": {"Launcher": _ROLE, "Worker": _ROLE},
        }
    },
    "raycluster": _RESOURCE
    | {
        "spec": {
            "headGroupSpec": _GROUP,
            "workerGroupSpecs": [
                _GROUP | {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int}
            ],
        }
    },
    "skypilot": {
        "name": str,
        "num_nodes": int,
        "resources": {"accelerators": str, "image_id": str},
        "volumes": {},
        "run": str,
    },
}


def find_unknown(value: Any, fields: Any, path: str = "") -> Iterator[str]:
    """Yield the places of a manifest that its fields do not have."""
    if isinstance(fields, type):
        if not isinstance(value, fields):
            yield path
    elif isinstance(fields, list):
        for number, item in enumerate(value):
            yield from find_unknown(item, fields[0], f"{path}[{number}]")
    elif fields:
        for name, item in value.items():
            place = f"{path}.{name}"
            yield from find_unknown(item, fields[name], place) if name in fields else [place]


@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_known(name: str) -> None:
    manifest = yaml.safe_load(SKY.read_text()) if name == "skypilot" else read(name)
    assert not list(find_unknown(manifest, FIELDS[name]))


def test_the_list_finds_what_is_misspelt() -> None:
    manifest = read("raycluster")
    manifest["spec"]["workerGroupSpecs"][0]["replica"] = 2
    manifest["spec"]["headGroupSpec"]["template"] = {"containers": []}
    found = [".spec.headGroupSpec.template.containers", ".spec.workerGroupSpecs[0].replica"]
    assert list(find_unknown(manifest, FIELDS["raycluster"])) == found


def find_pods(name: str) -> list[dict[str, Any]]:
    """Return the specifications of all pods of a manifest."""
    spec = read(name)["spec"]
    roles: Iterable[Any]
    if name == "raycluster":
        roles = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    else:
        (roles,) = (found.values() for key, found in spec.items() if key.endswith("ReplicaSpecs"))
    return [role["template"]["spec"] for role in roles]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["pytorchjob", "mpijob", "raycluster"])
def test_pods_are_known_to_kubernetes(name: str, version: str) -> None:
    pods = find_pods(name)
    assert len(pods) == 2
    for pod in pods:
        check(as_pod(pod), version)


def test_a_train_job_is_known_to_the_trainer() -> None:
    try:
        from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
    except ImportError:
        go_without("needs pip install --no-deps kubeflow-trainer-api")
    job = read("trainjob")
    # The model drops fields that it does not know.
    assert TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job
    job["spec"]["trainer"]["numNode"] = 3
    assert TrainerV1alpha1TrainJob.from_dict(job).to_dict() != job


def read_models() -> Callable[[str], dict[str, str]]:
    """Return a function from a model of Kubeflow's training operator to its fields, with types.

    The models import a client of Kubernetes, so they are read.
    """
    try:
        files = importlib.metadata.files("kubeflow-training") or []
    except ImportError:
        go_without("needs pip install --no-deps kubeflow-training")
    models = {path.stem.replace("_", ""): Path(str(path.locate())) for path in files}

    def fields(model: str) -> dict[str, str]:
        tree = ast.parse(models[model.lower()].read_text())
        tables = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id in ("openapi_types", "attribute_map")
        }
        types = tables["openapi_types"]
        return {name: types[key] for key, name in tables["attribute_map"].items()}

    return fields


def test_a_job_is_known_to_the_training_operator() -> None:
    fields = read_models()

    def check_fields(value: dict[str, Any], model: str) -> None:
        known = fields(model)
        assert value.keys() <= known.keys()
        for name, item in value.items():
            inner = known[name].removeprefix("dict(str, ").removesuffix(")")
            if inner.startswith("KubeflowOrg"):
                for each in [item] if inner == known[name] else item.values():
                    check_fields(each, inner)
            elif inner in ("str", "int"):
                assert type(item).__name__ == inner

    job = read("pytorchjob")
    check_fields(job, "KubeflowOrgV1PyTorchJob")
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replica"] = 2
    with pytest.raises(AssertionError):
        check_fields(job, "KubeflowOrgV1PyTorchJob")


def run_pods(
    run: Run, watched: Watched, command: list[str], variables: list[dict[str, str]]
) -> None:
    """Run a command once per pod, with its variables; only places of data and train.py differ."""
    places = {"/data": str(run.folder), " train.py": f" {TRAIN}", "29500": str(free_port())}
    for there, here in places.items():
        command = [word.replace(there, here) for word in command]
        variables = [
            {name: text.replace(there, here) for name, text in own.items()} for own in variables
        ]
    with ExitStack() as stack:
        pods = []
        for number, own in enumerate(variables):
            log = run.folder / f"pod-{number}.log"
            process = running(command, watched.environment(**own), log)
            pods.append((stack.enter_context(process), log))
        for process, log in pods:
            assert process.wait(250) == 0, log.read_text()
        watched.check_end()


def torch_variables(node: int) -> dict[str, str]:
    """Return the variables by which Kubeflow configures torchrun."""
    return {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": str(node),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "29500",
    }


@pytest.mark.slow
def test_pods_of_the_trainer_train(run: Run, golden: dict[str, str], watched: Watched) -> None:
    trainer = read("trainjob")["spec"]["trainer"]
    command = [*trainer["command"], *trainer["args"]]
    pods = [environment_of(trainer) | torch_variables(i) | {"ATTEMPT": "0"} for i in range(2)]
    run_pods(run, watched, command, pods)
    run.check(golden, 2, "torchrun")


@pytest.mark.slow
def test_pods_of_the_training_operator_train(
    run: Run, golden: dict[str, str], watched: Watched
) -> None:
    specs = [pod["containers"][0] for pod in find_pods("pytorchjob")]
    commands = [[*container["command"], *container["args"]] for container in specs]
    assert commands[0] == commands[1]
    pods = [
        # The operator sets those of torch.distributed, too: by node.
        environment_of(container)
        | torch_variables(node)
        | {"JOB": "pretrain", "RANK": str(node), "WORLD_SIZE": "2"}
        | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        for node, container in enumerate(specs)
    ]
    run_pods(run, watched, commands[0], pods)
    run.check(golden, 2, "torchrun")


@pytest.mark.slow
def test_the_launcher_of_the_mpi_operator_builds(
    run: Run, golden: dict[str, str], watched: Watched, mpirun: str
) -> None:
    (run.folder / "hostfile").write_text("localhost slots=1\n")
    (container,) = find_pods("mpijob")[0]["containers"]
    variables = {
        "OMPI_MCA_orte_default_hostfile": str(run.folder / "hostfile"),
        # The tests may run as root.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    run_pods(run, watched, [*container["command"], *container["args"]], [variables])
    assert run.digests() == golden


@pytest.mark.slow
def test_workers_of_ray_train(run: Run, golden: dict[str, str], watched: Watched) -> None:
    (container,) = find_pods("raycluster")[1]["containers"]
    pods = [
        environment_of(container)
        | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        | {"NODE_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        for rank in range(2)
    ]
    run_pods(run, watched, ["bash", "-c", f"exec python {' '.join(run.train())}"], pods)
    run.check(golden, 2, "other")


@pytest.mark.slow
def test_nodes_of_skypilot_train(run: Run, golden: dict[str, str], watched: Watched) -> None:
    task = yaml.safe_load(SKY.read_text())
    nodes = [
        {
            "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
            "SKYPILOT_NODE_RANK": str(node),
            "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
            "SKYPILOT_NUM_GPUS_PER_NODE": "1",
            "SKYPILOT_TASK_ID": "sky-2026-01-01-00-00-00-000000_pretrain_1",
        }
        for node in range(2)
    ]
    run_pods(run, watched, ["bash", "-c", task["run"]], nodes)
    run.check(golden, 2, "torchrun")
