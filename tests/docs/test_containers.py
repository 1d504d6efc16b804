"""The examples of deploy/ fit the command line, each other, the image and the page about them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
import yaml

from homophily.cli.app import app
from tests.docs.pages import ROOT, blocks

FOLDER = ROOT / "deploy"
CONTAINERFILE = (FOLDER / "Containerfile").read_text(encoding="utf-8")
SERVICES: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]
OBJECTS: list[dict[str, Any]] = [
    found
    for name in ("kubernetes.yaml", "kubernetes-join.yaml")
    for found in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))
]
JOBS = [found for found in OBJECTS if found["kind"] == "Job"]
CONTAINERS = [container for job in JOBS for container in job["spec"]["template"]["spec"]["containers"]]
COMMANDS = [*(service["command"] for service in SERVICES.values()), *(each["args"] for each in CONTAINERS)]


def parsed(words: list[str]) -> dict[str, Any]:
    """The parameters of a command of homophily; fails if there is no such command or option."""
    command: Any = typer.main.get_command(app)
    name, rest = "homophily", words
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(typer.Context(command, info_name=name), rest)
        assert command is not None, name
    with command.make_context(name, list(rest)) as context:
        return dict(context.params)


def instruction(word: str) -> list[str]:
    return re.findall(rf"^{word} (.*)$", CONTAINERFILE, re.MULTILINE)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_is_one_that_homophily_has(words: list[str]) -> None:
    assert parsed(words)


def test_a_flag_that_homophily_does_not_have_would_be_found() -> None:
    with pytest.raises(Exception, match="No such option: --log-xml"):
        parsed(["peer", "peer.toml", "--log-xml"])


def test_the_image_runs_a_peer_of_its_working_directory_as_an_ordinary_user() -> None:
    assert instruction("ENTRYPOINT") == ['["homophily"]']
    (command,) = instruction("CMD")
    assert parsed(yaml.safe_load(command))["log_stderr"]
    assert instruction("WORKDIR")[-1] == "/peer"
    (user,) = instruction("USER")
    assert user == "1000:1000"


def test_the_build_context_holds_what_the_image_copies() -> None:
    sent = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    copied = {name for words in instruction("COPY") for name in words.split()[:-1]}
    assert sent == copied
    assert all((ROOT / name).exists() for name in copied)


def test_compose_mounts_what_the_commands_use_and_publishes_the_ports() -> None:
    for service in SERVICES.values():
        assert "/peer" in [volume.split(":")[1] for volume in service["volumes"]]
        assert service["tmpfs"] == ["/tmp"], "homophily writes temporary files, but the root is read-only"
    build = SERVICES["peer"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == FOLDER / "Containerfile"
    (address,) = parsed(SERVICES["authority"]["command"])["listen"]
    assert SERVICES["authority"]["ports"] == ["{0}:{0}".format(address.rpartition(":")[2])]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["metadata"]["name"])
def test_a_job_runs_as_the_user_of_the_image_and_mounts_volumes_that_exist(job: dict[str, Any]) -> None:
    pod = job["spec"]["template"]["spec"]
    security = pod["securityContext"]
    assert [f"{security['runAsUser']}:{security['runAsGroup']}"] == instruction("USER")
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    (claim,) = (found["metadata"]["name"] for found in OBJECTS if found["kind"] == "PersistentVolumeClaim")
    assert mounts["/peer"]["persistentVolumeClaim"]["claimName"] == claim
    assert "emptyDir" in mounts["/tmp"]


def test_the_service_leads_to_the_port_on_which_the_joined_peer_listens() -> None:
    (service,) = (found["spec"] for found in OBJECTS if found["kind"] == "Service")
    peer, join = JOBS
    labels = peer["spec"]["template"]["metadata"]["labels"]
    assert service["selector"] == labels
    assert service["selector"].items() - join["spec"]["template"]["metadata"]["labels"].items()
    (port,) = CONTAINERS[0]["ports"]
    (outer,) = service["ports"]
    options = parsed(CONTAINERS[1]["args"])
    assert outer["targetPort"] == port["name"]
    assert [address.rpartition(":")[2] for address in options["listen"]] == [str(port["containerPort"])]
    assert [address.rpartition(":")[2] for address in options["address"]] == [str(outer["port"])]


def test_the_health_that_is_asked_for_is_where_the_peer_serves_it() -> None:
    probe = CONTAINERS[0]["readinessProbe"]["exec"]["command"]
    for words, asked in ((SERVICES["peer"]["command"], SERVICES["peer"]["healthcheck"]["test"]), (COMMANDS[2], probe)):
        assert f"http://{parsed(words)['metrics']}/health" in asked[-1]


def test_a_job_that_needs_an_operator_is_not_repeated() -> None:
    first, *_ = JOBS[0]["spec"]["podFailurePolicy"]["rules"]
    assert first["action"] == "FailJob"
    assert first["onExitCodes"] == {"containerName": CONTAINERS[0]["name"], "operator": "In", "values": [2]}


def test_the_page_uses_names_commands_and_labels_that_exist() -> None:
    shown = [command for block in blocks("docs/containers.md") for command in block.commands if block.language == "sh"]
    ours = [
        found[1]
        for command in shown
        if (found := re.search(r"(?: homophily|run --rm authority|run --rm peer) (\w.+)", command))
    ]
    assert len(ours) == 7
    for words in ours:
        assert parsed(words.split())
    (label,) = (found[1] for command in shown if (found := re.search(r"--selector (\S+)", command)))
    labelled = {found["kind"] for found in OBJECTS if label in _labels(found)}
    assert labelled == {"PersistentVolumeClaim", "Service"}, "what a job needs before the peer has joined"
    for kind, name in re.findall(r" (job|secret generic)[/ ](\S+)", " ".join(shown)):
        known = [job["metadata"]["name"] for job in JOBS] if kind == "job" else [_secret()]
        assert name in known


def _labels(found: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in found["metadata"].get("labels", {}).items()]


def _secret() -> str:
    (variable,) = CONTAINERS[1]["env"]
    assert f"$({variable['name']})" in CONTAINERS[1]["args"]
    return str(variable["valueFrom"]["secretKeyRef"]["name"])


def test_the_page_names_every_file() -> None:
    page = (ROOT / "docs/containers.md").read_text(encoding="utf-8")
    assert [path.name for path in FOLDER.iterdir() if f"../deploy/{path.name}" not in page] == []
