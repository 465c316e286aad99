"""The files in deploy/: each is read by the tool that it is for where that is here, and its steps are done."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.server.live import live_server
from tests.support.tiny import TinyModel, TinyOptions
from twofold.cli.serve import ServeOptions
from twofold.host.env import FLAG_PREFIX

DEPLOY = Path(__file__).parents[2] / "deploy"
ROOT = DEPLOY.parent
OPTIONS = {f"{FLAG_PREFIX}{name.upper()}" for name in ServeOptions.__dataclass_fields__}
OWN_VARIABLES = {"TWOFOLD_CACHE"}
Steps = list[tuple[str, str]]


@pytest.fixture(scope="module")
def steps() -> Steps:
    """The Dockerfile's instructions and what stands behind them."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined if line)]


def test_the_image_runs_without_root_or_secrets_and_says_how_it_is(steps: Steps) -> None:
    last = steps[max(i for i, (name, _) in enumerate(steps) if name == "FROM") :]
    kept = dict(last)
    assert kept["USER"] == "10001"
    assert kept["EXPOSE"] == "8000"
    assert kept["VOLUME"] == "/data"
    assert kept["ENTRYPOINT"] == '["twofold"]'
    assert "KEY" not in kept["ENV"]
    assert all(variable in OPTIONS | OWN_VARIABLES for variable in re.findall(r"TWOFOLD_\w+", kept["ENV"]))
    assert [name for name, _ in steps].count("FROM") == 2


def test_what_the_image_copies_is_in_a_clone_and_not_ignored(steps: Steps) -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    sources = [
        source for name, rest in steps if name == "COPY" and "--from" not in rest for source in rest.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored


def test_the_health_check_asks_a_running_server(steps: Steps, tiny_gguf: Any, tmp_path: Path) -> None:
    command = re.search(r"CMD (\[.*\])", dict(steps)["HEALTHCHECK"])
    assert command is not None
    _, flag, code = yaml.safe_load(command[1])
    model: TinyModel = tiny_gguf(TinyOptions("llama", vocab=300, context=512))
    variables = {"TWOFOLD_HOST": "0.0.0.0", "TWOFOLD_API_KEY": "one two", "TWOFOLD_ALLOWED_HOSTS": "twofold a.b"}
    with live_server(tmp_path, f"tiny={model.path}", "--threads", "1", environment=variables) as live:
        port = live.url.rpartition(":")[2]
        asked = [sys.executable, flag, code.replace("8000", port)]
        assert subprocess.run(asked, check=False).returncode == 0
        for host in ("twofold", "a.b"):
            found = live.get("/v1/models", headers={"host": host, "authorization": "Bearer two"})
            assert found.status_code == 200
        assert live.get("/v1/models").status_code == 401
    assert subprocess.run(asked, check=False, stderr=subprocess.DEVNULL).returncode != 0


def test_a_container_without_a_key_says_what_is_missing(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TWOFOLD_")}
    command = [sys.executable, "-m", "twofold", "serve"]
    variables = {**kept, "TWOFOLD_HOST": "0.0.0.0", "TWOFOLD_DATA_FOLDER": str(tmp_path)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "requires an API key" in done.stderr


@pytest.mark.skipif("TWOFOLD_TEST_INSTALL" not in os.environ, reason="TWOFOLD_TEST_INSTALL=1 runs the image's steps")
def test_the_steps_of_the_image_give_a_working_command(steps: Steps, tmp_path: Path) -> None:
    """What RUN and COPY do, with the image's folders under a scratch one; no container, and nothing as root."""
    image, bin_folder = tmp_path / "image", tmp_path / "image" / "opt" / "twofold" / "bin"
    folder = image
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("TWOFOLD_", "PYTHON"))}
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    for name, rest in steps[1:]:
        if name == "FROM":
            break
        if name == "WORKDIR":
            folder = image / rest.lstrip("/")
            folder.mkdir(parents=True)
        elif name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                _copy(ROOT / source, folder / target)
        elif name == "RUN":
            words = [word.replace("/opt/twofold", str(image / "opt" / "twofold")) for word in shlex.split(rest)]
            done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=False)
            if "Retrying (" in done.stderr:
                pytest.skip("pip cannot fetch the dependencies")
            assert done.returncode == 0, done.stderr
    shutil.rmtree(folder)  # the second stage has only /opt/twofold
    version = subprocess.run([bin_folder / "twofold", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", version.stdout)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target / source.name if target.is_dir() else target)


def test_compose_names_flags_that_there_are() -> None:
    service = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]["twofold"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert service["environment"].keys() <= OPTIONS
    assert all(
        flag[2:].replace("-", "_") in ServeOptions.__dataclass_fields__
        for flag in service["command"]
        if flag[:2] == "--"
    )
    assert service["environment"]["TWOFOLD_API_KEY"].startswith("${TWOFOLD_API_KEY:?")
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def manifests() -> Iterator[Any]:
    yield from yaml.safe_load_all((DEPLOY / "kubernetes" / "twofold.yaml").read_text())


def test_kubernetes_probes_paths_and_mounts_fit_together() -> None:
    volume, deployment, service = manifests()
    assert [each["kind"] for each in (volume, deployment, service)] == [
        "PersistentVolumeClaim",
        "Deployment",
        "Service",
    ]
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert pod["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/health", "readiness": "/ready", "liveness": "/health"}
    assert {each["name"] for each in container["env"]} <= OPTIONS
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > ServeOptions().shutdown_timeout


def test_kubernetes_nodes_find_their_hub_and_their_certificates() -> None:
    folder = DEPLOY / "kubernetes"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert all((folder / name).is_file() for name in kustomization["resources"])
    (patch,) = (yaml.safe_load(each["patch"]) for each in kustomization["patches"])
    nodes, service = yaml.safe_load_all((folder / "nodes.yaml").read_text())
    _, hub, _ = manifests()
    assert (patch["kind"], patch["metadata"]["name"]) == (hub["kind"], hub["metadata"]["name"])
    assert service["spec"]["selector"] == hub["spec"]["template"]["metadata"]["labels"]
    patched, node = patch["spec"]["template"]["spec"], nodes["spec"]["template"]["spec"]
    hub_arguments, node_arguments = patched["containers"][0]["args"], node["containers"][0]["args"]
    assert all(
        each[2:].replace("-", "_") in ServeOptions.__dataclass_fields__ for each in hub_arguments if each[:2] == "--"
    )
    port = hub_arguments[hub_arguments.index("--listen-nodes") + 1].rpartition(":")[2]
    assert node_arguments[node_arguments.index("--join") + 1] == f"{service['metadata']['name']}:{port}"
    assert {str(each["port"]) for each in service["spec"]["ports"]} == {port}
    assert patched["containers"][0]["ports"] == [{"name": "nodes", "containerPort": int(port)}]
    for pod, arguments in ((patched, hub_arguments), (node, node_arguments)):
        mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        assert mounts["certificates"] == arguments[arguments.index("--fleet-certs") + 1]
        assert mounts.keys() == {each["name"] for each in pod["volumes"]}
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl")
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True)
    built = next(
        each
        for each in yaml.safe_load_all(done.stdout)
        if each["metadata"]["name"] == "twofold" == each["metadata"].get("labels", {}).get("app")
    )
    (container,) = built["spec"]["template"]["spec"]["containers"]
    assert {each["name"] for each in container["ports"]} == {"http", "nodes"}
    assert {each["name"] for each in container["volumeMounts"]} == {"data", "tmp", "certificates"}


@pytest.mark.parametrize("name", ["twofold", "twofold-node"])
def test_systemd_takes_the_unit(name: str, tmp_path: Path) -> None:
    text = (DEPLOY / f"{name}.service").read_text()
    assert set(re.findall(r"\b(TWOFOLD_\w+)=", text)) <= OPTIONS | OWN_VARIABLES | {"TWOFOLD_MODEL"}
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / f"{name}.service"
    unit.write_text(text.replace("/opt/twofold/bin/twofold", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, f"{name}.service" in done.stderr) == (0, False), done.stderr


def test_systemd_is_told_when_the_server_is_ready_and_when_it_stops(tiny_gguf: Any, tmp_path: Path) -> None:
    model: TinyModel = tiny_gguf(TinyOptions("llama", vocab=300, context=512))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with live_server(tmp_path, f"tiny={model.path}", "--threads", "1", environment=variables) as live:
            assert manager.recv(64) == b"READY=1"
            assert live.end() == 0
            assert manager.recv(64) == b"STOPPING=1"


def test_nginx_passes_events_at_once_and_takes_the_file(tmp_path: Path) -> None:
    text = (DEPLOY / "nginx.conf").read_text()
    assert "proxy_buffering off;" in text
    assert f"proxy_read_timeout {ServeOptions().request_timeout:.0f}s;" in text
    if shutil.which("nginx") is None:
        pytest.skip("there is no nginx")
    plain = re.sub(r"listen 443 ssl;", "listen 127.0.0.1:18443;", re.sub(r"\s*ssl_certificate\w* .*;", "", text))
    site = f"pid {tmp_path}/pid;\nerror_log {tmp_path}/errors;\nevents {{}}\nhttp {{\naccess_log off;\n{plain}}}\n"
    (tmp_path / "nginx.conf").write_text(site)
    command = ["nginx", "-t", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
