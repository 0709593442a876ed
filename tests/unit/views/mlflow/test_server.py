"""`rollbook ui` as other accounts of the machine, pages of other origins and clients of the owner's meet it."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import socket
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollbook.project.run.run import Run
from tests.mlflow_server import serving
from tests.unit.views.mlflow.project import Project

SECRET = "what only the owner reads"
ROUTES = (
    ("GET", "/"),
    ("HEAD", "/"),
    ("GET", "/health"),
    ("GET", "/version"),
    ("GET", "/static-files/favicon.ico"),
    ("GET", "/build/index.html"),
    ("GET", "/get-artifact?run_id=x&path=y"),
    ("GET", "/model-versions/get-artifact?name=x&version=1&path=y"),
    ("GET", "/ajax-api/3.0/mlflow/server-info"),
    ("GET", "/api/2.0/mlflow-artifacts/artifacts"),
    ("GET", "/api/2.0/mlflow-artifacts/artifacts/x"),
    ("PUT", "/api/2.0/mlflow-artifacts/artifacts/x"),
    ("DELETE", "/api/2.0/mlflow-artifacts/artifacts/x"),
    ("POST", "/api/2.0/mlflow/experiments/create"),
    ("POST", "/ajax-api/2.0/mlflow/upload-artifact?run_uuid=x&path=y"),
    ("GET", "/ajax-api/2.0/mlflow/experiments/search?max_results=5"),
    ("PATCH", "/ajax-api/2.0/mlflow/model-versions/update"),
    ("OPTIONS", "/api/2.0/mlflow/experiments/create"),
    ("GET", "/ajax-api/3.0/mlflow/assistant/config"),
    ("POST", "/graphql"),
    ("POST", "/v1/traces"),
    ("POST", "/gateway/mlflow/v1/chat/completions"),
    ("GET", "/ajax-api/3.0/mlflow/mcp-servers"),
    ("GET", "//health"),
    ("GET", "/%68ealth"),
    ("GET", "/static-files/../health"),
    ("GET", "/no/such/page"),
    ("PROPFIND", "/"),
)


@dataclass
class Reply:
    """What the server answered."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


@dataclass
class Served:
    """A project of three iterations that `rollbook ui -v` serves, and who asks it."""

    folder: Path
    link: str
    experiment_id: str
    run_id: str
    outside: Path

    @property
    def address(self) -> urllib.parse.SplitResult:
        return urllib.parse.urlsplit(self.link)

    @property
    def base(self) -> str:
        return f"{self.address.scheme}://{self.address.netloc}"

    @property
    def token(self) -> str:
        return urllib.parse.parse_qs(self.address.query)["token"][0]

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Reply:
        """One request, with no header but those given and `Host`."""
        with contextlib.closing(
            http.client.HTTPConnection(self.address.netloc, timeout=30)
        ) as connection:
            connection.request(method, path, body or None, dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())

    def call(self, method: str, path: str, **values: object) -> Reply:
        """A request of the owner's, with JSON."""
        headers = {**self.bearer, "Content-Type": "application/json"}
        return self.ask(method, path, headers, json.dumps(values).encode() if values else b"")

    def create(self, name: str, location: str) -> Reply:
        return self.call(
            "POST", "/api/2.0/mlflow/experiments/create", name=name, artifact_location=location
        )

    def printed(self) -> str:
        return Path(self.folder, "ui.log").read_text()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, finished_folder: Path) -> Iterator[Served]:
    """Beside the project's own run, an experiment and a run whose files an older database has outside of it."""
    from rollbook.views.mlflow.store import opened
    from rollbook.views.mlflow.sync import bring_up_to_date

    folder = tmp_path_factory.mktemp("served")
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text(SECRET)
    shutil.copytree(finished_folder, folder, dirs_exist_ok=True)
    (folder / ".dvc").mkdir()
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        for name in [name for name in os.environ if name.startswith(("MLFLOW_TR", "DVC_"))]:
            patch.delenv(name)
        Project()
        bring_up_to_date(Run())
        with opened("rollbook") as store:
            found = store.client.search_runs(
                [store.experiment_id], "tags.`rollbook.kind` = 'chain'"
            )
            old = store.client.create_experiment("old", artifact_location=str(outside))
            run = store.client.create_run(old)
            store.client.log_text(run.info.run_id, SECRET, "secret")
        with serving(folder, "-v") as link:
            yield Served(folder, link, store.experiment_id, found[0].info.run_id, outside)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_route_answers_who_has_no_token(served: Served, method: str, path: str) -> None:
    """All get the same answer, whether the route exists or not."""
    reply = served.ask(method, path)
    assert reply.status == 401
    assert set(reply.headers) <= {
        "date", "server", "content-type", "content-length", "connection", "www-authenticate", "cache-control",
        "referrer-policy", "x-content-type-options",
    }  # fmt: skip
    other = served.ask("GET", "/nowhere")
    assert reply.body == (b"" if method == "HEAD" else other.body)
    assert b"rollbook ui" in other.body and SECRET.encode() not in other.body


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", "Bearer "),
        ("Authorization", "Bearer {short}"),
        ("Authorization", "Bearer {token}x"),
        ("Authorization", "Bearer {swapped}"),
        ("Authorization", "Bearer {token} {token}"),
        ("Authorization", "Token {token}"),
        ("Authorization", "{token}"),
        ("Authorization", "Bearer é"),
        ("Authorization", "Basic YWRtaW46cGFzc3dvcmQ="),
        ("Cookie", "{cookie}="),
        ("Cookie", "{cookie}={short}"),
        ("Cookie", "other={token}"),
        ("Cookie", "{cookie}=é"),
        ("X-Forwarded-User", "root"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("Referer", "{link}"),
    ],
)
def test_what_is_not_the_token_opens_nothing(served: Served, name: str, value: str) -> None:
    token = served.token
    given = value.format(
        token=token,
        short=token[:-1],
        swapped=token.swapcase(),
        link=served.link,
        cookie=f"rollbook_ui_{served.address.port}",
    )
    assert served.ask("GET", "/health", {name: given}).status == 401
    wrong = served.ask("GET", f"/?token={token[:-1]}")
    assert wrong.status == 401 and "set-cookie" not in wrong.headers


def test_no_websocket_opens_without_the_token(served: Served) -> None:
    with socket.create_connection((served.address.hostname, served.address.port)) as connection:
        connection.sendall(
            f"GET /ws HTTP/1.1\r\nHost: {served.address.netloc}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        assert connection.recv(100).split()[1] in (b"401", b"403")


def test_the_printed_link_opens_the_pages_by_a_cookie(served: Served) -> None:
    path = f"/?{served.address.query}"
    entered = served.ask("GET", path)
    assert entered.status == 303
    assert entered.headers["Location"] == "/"  # browsers keep the fragment
    assert entered.headers["Cache-Control"] == "no-store"
    cookie, _, attributes = entered.headers["Set-Cookie"].partition(";")
    assert {each.strip().lower() for each in attributes.split(";")} == {
        "httponly", "path=/", "samesite=lax",
    }  # fmt: skip
    # other programs at this host name have cookies of their own, some of them malformed
    cookies = f'a=b; bad"=[;; {cookie}; c'
    page = served.ask("GET", "/", {"Cookie": cookies})
    assert page.status == 200 and b"<title>MLflow" in page.body
    found = served.ask(
        "GET", "/ajax-api/2.0/mlflow/experiments/search?max_results=5", {"Cookie": cookie}
    )
    assert "rollbook" in {each["name"] for each in json.loads(found.body)["experiments"]}


@pytest.mark.skipif(os.getuid() != 0, reason="root alone can be another account")
@pytest.mark.parametrize("more", ["", "X-Forwarded-For: 192.0.2.1\r\n"])
@pytest.mark.parametrize("uid", [0, 65534])
def test_the_cookie_is_of_no_use_to_another_account(served: Served, uid: int, more: str) -> None:
    """Browsers send it to every port of the host, so another account's server may have got it."""
    cookie = served.ask("GET", f"/?{served.address.query}").headers["Set-Cookie"].partition(";")[0]
    assert served.token not in cookie
    answered, told = os.pipe()
    if (child := os.fork()) == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        with socket.create_connection(("127.0.0.1", served.address.port or 0)) as connection:
            head = f"GET /version HTTP/1.1\r\nHost: {served.address.netloc}\r\nCookie: {cookie}\r\n{more}\r\n"
            connection.sendall(head.encode())
            os.write(told, connection.recv(12))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(told)
    assert os.read(answered, 12) == (b"HTTP/1.1 200" if uid == 0 else b"HTTP/1.1 401")
    os.close(answered)
    value = cookie.partition("=")[2]
    assert served.ask("GET", "/version", {"Authorization": f"Bearer {value}"}).status == 401


def test_an_account_is_known_by_its_end_of_a_connection() -> None:
    from rollbook.views.mlflow.access import is_of_another_account

    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as server:
            try:
                server.bind((host, 0))
            except OSError:
                continue  # this machine has no IPv6
            server.listen()
            client = socket.create_connection(server.getsockname()[:2])
            accepted, peer = server.accept()
            here = accepted.getsockname()[:2]
            assert not is_of_another_account(peer[:2], here)
            client.close()  # nobody's now; it could have been anybody's
            assert is_of_another_account(peer[:2], here)
            accepted.close()
    assert is_of_another_account(("127.0.0.1", 1), ("127.0.0.1", 2))  # there is no such connection
    assert not is_of_another_account(("192.0.2.1", 1), ("192.0.2.2", 2))  # another machine's


def test_tokens_are_of_one_start_and_cannot_be_guessed(served: Served) -> None:
    assert len(base64.urlsafe_b64decode(served.token + "==")) >= 32
    from rollbook.views.mlflow.access import new_token

    assert len({new_token() for _ in range(100)}) == 100


def test_clients_give_the_token_as_mlflow_does(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's own client, configured by what the command printed."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    client = MlflowClient(served.base)
    with pytest.raises(MlflowException, match="MLFLOW_TRACKING_TOKEN"):
        client.search_experiments()
    printed = dict(
        word.split("=", 1)
        for word in served.printed().split()
        if word.startswith("MLFLOW_TRACKING")
    )
    for name, value in printed.items():
        monkeypatch.setenv(name, value)
    run = MlflowClient(printed["MLFLOW_TRACKING_URI"]).create_run(served.experiment_id)
    client.log_text(run.info.run_id, "3+4=7", "notes/sum.txt")
    assert [each.path for each in client.list_artifacts(run.info.run_id, "notes")] == [
        "notes/sum.txt"
    ]
    got = served.ask(
        "GET", f"/get-artifact?run_id={run.info.run_id}&path=notes/sum.txt", served.bearer
    )
    assert got.body == b"3+4=7"


def test_stages_of_a_process_of_their_own_log_through_the_server(
    served: Served,
    finished_folder: Path,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rollbook.views.mlflow.sync import bring_up_to_date
    from tests.unit.views.mlflow.conftest import Shown

    shutil.copytree(finished_folder, project, dirs_exist_ok=True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", served.base)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", served.token)
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(
        text.replace("experiment: rollbook", "experiment: over the wire")
    )
    bring_up_to_date(Run())
    assert set(Shown("over the wire", served.base).iterations) == {"i0001", "i0002", "i0003"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},  # a name that was rebound to this address
        {"Host": "evil.example:5000"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "10.evil.example"},  # matches MLflow's own pattern of private addresses
        {"Host": "localhost.evil.example"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},  # another account's server on another port
        {"Origin": "http://localhost"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_pages_of_other_origins_get_nothing_with_the_owners_cookie(
    served: Served, method: str, headers: Mapping[str, str]
) -> None:
    cookie = served.ask("GET", f"/?{served.address.query}").headers["Set-Cookie"].partition(";")[0]
    path = "/ajax-api/2.0/mlflow/experiments/search?max_results=5"
    refused = served.ask(method, path, {"Cookie": cookie, **headers}, b"{}")
    assert refused.status == 403
    assert "access-control-allow-origin" not in refused.headers
    assert b"experiments" not in refused.body
    same = {"Cookie": cookie, "Origin": served.base, "Sec-Fetch-Site": "same-origin"}
    same["Content-Type"] = "application/json"
    assert served.ask(method, path, same, b'{"max_results": 5}').status == 200


def test_a_link_on_a_page_of_others_opens_the_first_page_alone(served: Served) -> None:
    """A terminal in a browser is such a page; nothing but the page itself may be asked for from there."""
    clicked = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    entered = served.ask("GET", f"/?{served.address.query}", clicked)
    assert entered.status == 303
    clicked["Cookie"] = entered.headers["Set-Cookie"].partition(";")[0]
    assert served.ask("GET", "/", clicked).status == 200
    assert served.ask("GET", "/get-artifact?run_id=x&path=y", clicked).status == 403


def test_the_token_is_nowhere_but_in_what_the_command_printed(served: Served) -> None:
    served.ask("GET", f"/?{served.address.query}")
    escaped = "".join(f"%{ord(each):02x}" for each in served.token)
    served.ask("GET", f"/?token={escaped}")
    served.ask("GET", f"/get-artifact?token={served.token}&path=y")
    served.ask("GET", "/", {"Referer": served.link, **served.bearer})
    assert "GET / HTTP/1.1" in served.printed()  # requests are logged, this is `-v`
    told = [line for line in served.printed().splitlines() if served.token in line]
    assert len(told) == 2 and told[0].startswith("MLflow: ") and "HTTP/1.1" not in "".join(told)
    assert escaped not in served.printed()
    for file in served.folder.rglob("*"):
        if file.is_file() and file.name != "ui.log":
            assert served.token.encode() not in file.read_bytes(), file
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert served.token.encode() not in process.read_bytes()


def test_pages_load_nothing_from_elsewhere_and_tell_nobody_where_they_are(served: Served) -> None:
    """The browser test opens a trace; this holds for every answer."""
    for path in ("/", "/static-files/favicon.ico", "/get-artifact?run_id=x&path=y", "/nowhere"):
        headers = served.ask("GET", path, served.bearer).headers
        policy = dict(
            part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")
        )
        assert policy["default-src"] == "'self'"
        allowed = {source for sources in policy.values() for source in sources.split()}
        assert allowed <= {"'self'", "'none'", "data:", "blob:", "'unsafe-inline'", "'unsafe-eval'"}
        assert "'unsafe-inline'" not in policy["script-src"]
        assert policy["object-src"] == policy["base-uri"] == "'none'"
        assert policy["frame-ancestors"] == "'self'"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["X-DNS-Prefetch-Control"] == "off"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def _locations(served: Served) -> dict[str, str]:
    outside, project = served.outside, served.folder
    return {
        "a folder of another account": str(outside),
        "as a URI": f"file://{outside}",
        "URI of a host": f"file://localhost{outside}",
        "upwards": f"{project}/mlflow/artifacts/../../../{outside.name}",
        "upwards, escaped": f"{project}/mlflow/artifacts/%2e%2e/%2e%2e/%2e%2e/{outside.name}",
        "relative": f"../{outside.name}",
        "relative URI": f"file:../{outside.name}",
        "begins alike": f"{project}/mlflow/artifacts-other",
        "beside the store": f"{project}x/mlflow/artifacts",
        "the project itself": str(project),
        "hooks of git": f"{project}/.git/hooks",
        "the database": f"{project}/mlflow",
        "code": f"{project}/stages",
        "too long": "/" + "x" * 240,
        "a NUL": "mlflow/artifacts/\0",
        "a link in the store": f"{project}/mlflow/artifacts/link",
        "below a link": f"{project}/mlflow/artifacts/link/deeper",
        "the system": "/etc",
        "s3": "s3://bucket/x",
        "gs": "gs://bucket/x",
        "http": "http://127.0.0.1:1/x",
        "ftp": "ftp://127.0.0.1/x",
        "dbfs": "dbfs:/x",
        "wasbs": "wasbs://c@a.blob.core.windows.net/x",
        "another server": "mlflow-artifacts://127.0.0.1:1/x",
        "proxied upwards": "mlflow-artifacts:/../../x",
        "upper case": f"FILE://{outside}",
        "a drive": "c:/x",
    }


@pytest.mark.parametrize(
    "place",
    _locations(Served(Path("/p"), "", "", "", Path("/o"))),
)
def test_experiments_outside_the_project_are_refused(served: Served, place: str) -> None:
    link = served.folder / "mlflow" / "artifacts" / "link"
    if not link.is_symlink():
        link.symlink_to(served.outside)
    reply = served.create(place, _locations(served)[place])
    assert reply.status == 400, reply.body
    found = served.call(
        "GET",
        f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={urllib.parse.quote(place)}",
    )
    assert found.status == 404


def test_experiments_of_the_store_itself_are_made(served: Served) -> None:
    for name, location in {
        "own": f"{served.folder}/mlflow/artifacts/own",
        "own uri": f"file://{served.folder}/mlflow/artifacts/own",
        "relative": "mlflow/artifacts/relative",
        "proxied": "mlflow-artifacts:/proxied",
        "default": "",
    }.items():
        assert served.create(name, location).status == 200, name


def test_files_that_an_older_store_has_outside_are_not_served(served: Served) -> None:
    """The database names them; a request cannot, but foreign projects bring their database along."""
    assert (served.outside / "secret").read_text() == SECRET
    found = served.call("GET", "/api/2.0/mlflow/experiments/get-by-name?experiment_name=old")
    old = json.loads(found.body)["experiment"]["experiment_id"]
    runs = json.loads(
        served.call("POST", "/api/2.0/mlflow/runs/search", experiment_ids=[old]).body
    )["runs"]
    run = runs[0]["info"]["run_id"]
    base = "/ajax-api/2.0/mlflow"
    for method, path in (
        ("GET", f"/get-artifact?run_id={run}&path=secret"),
        ("GET", f"/api/2.0/mlflow/artifacts/list?run_id={run}"),
        ("POST", f"{base}/upload-artifact?run_uuid={run}&path=new"),
    ):
        reply = served.ask(method, path, served.bearer, b"{}" if method == "POST" else b"")
        assert reply.status >= 400 and SECRET.encode() not in reply.body, path
    inside = json.loads(served.call("GET", f"{base}/runs/get?run_id={run}").body)["run"]
    assert inside["info"]["run_id"] == run  # its numbers are still shown
    refused = served.call("POST", "/api/2.0/mlflow/runs/create", experiment_id=old)
    assert refused.status == 400 and b"outside" in refused.body
    refused = served.call("POST", "/api/2.0/mlflow/logged-models", experiment_id=old, name="m")
    assert refused.status == 400
    assert sorted(each.name for each in served.outside.iterdir() if not each.is_dir()) == ["secret"]


def test_model_versions_and_traces_have_their_files_inside(served: Served) -> None:
    made = served.call("POST", "/api/2.0/mlflow/registered-models/create", name="policy")
    assert made.status == 200
    create = "/api/2.0/mlflow/model-versions/create"
    for source in (str(served.outside), f"file://{served.outside}", "s3://bucket/x", "https://h/x"):
        for more in ({}, {"run_id": served.run_id}):
            assert served.call("POST", create, name="policy", source=source, **more).status == 400
    ok = served.call(
        "POST", create, name="policy", source=f"runs:/{served.run_id}/x", run_id=served.run_id
    )
    assert ok.status == 200, ok.body
    info = {
        "trace_id": "tr-1",
        "trace_location": {
            "type": "MLFLOW_EXPERIMENT",
            "mlflow_experiment": {"experiment_id": served.experiment_id},
        },
        "request_time": "2026-01-01T00:00:00Z",
        "state": "OK",
    }
    start = "/api/3.0/mlflow/traces"
    hostile = {**info, "tags": {"mlflow.artifactLocation": str(served.outside)}}
    traced = served.call("POST", start, trace={"trace_info": hostile})
    if traced.status != 200:
        assert served.call("POST", start, trace={"trace_info": info}).status == 200
    moved = served.call(
        "PATCH", f"{start}/tr-1/tags", key="mlflow.artifactLocation", value=str(served.outside)
    )
    assert moved.status == 400, moved.body
    (served.outside / "traces.json").write_text(json.dumps({"spans": [], "x": SECRET}))
    got = served.call("GET", "/ajax-api/2.0/mlflow/get-trace-artifact?request_id=tr-1")
    (served.outside / "traces.json").unlink()
    assert SECRET.encode() not in got.body


def _planted(served: Served, place: str) -> tuple[str, Path]:
    """Links to a file and a folder elsewhere in the files of a run (`run`) or of the proxy (`proxy`)."""
    folder = served.folder / "mlflow" / "artifacts"
    if place == "run":
        folder = folder / served.run_id / "artifacts"
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in (("one", served.outside / "secret"), ("all", served.outside)):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)
    return served.run_id, folder


def test_links_among_the_files_of_a_run_are_not_followed(served: Served) -> None:
    run, folder = _planted(served, "run")
    for path in ("one", "all/secret", "./all/secret", "all%2Fsecret"):
        got = served.call("GET", f"/get-artifact?run_id={run}&path={path}")
        assert got.status >= 400 and SECRET.encode() not in got.body
    listed = json.loads(served.call("GET", f"/api/2.0/mlflow/artifacts/list?run_id={run}").body)
    assert not {"one", "all"} & {each["path"] for each in listed.get("files", [])}
    below = served.call("GET", f"/api/2.0/mlflow/artifacts/list?run_id={run}&path=all")
    assert below.status == 400 and b"secret" not in below.body.replace(SECRET.encode(), b"")
    for path in ("one", "all/new", "all/secret", "all/deep/new"):
        put = served.ask(
            "POST",
            f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path={path}",
            served.bearer,
            b"mine",
        )
        assert put.status == 400
    assert [each.name for each in served.outside.iterdir() if each.is_file()] == ["secret"]
    assert (served.outside / "secret").read_text() == SECRET
    assert (folder / "one").is_symlink()


def test_the_proxy_follows_no_links(served: Served) -> None:
    _planted(served, "proxy")
    proxy = "/api/2.0/mlflow-artifacts/artifacts"
    for path in ("one", "all/secret", "all/new", "all/deep/new"):
        for method in ("GET", "PUT", "DELETE"):
            reply = served.ask(
                method, f"{proxy}/{path}", served.bearer, b"mine" if method == "PUT" else b""
            )
            assert reply.status >= 400 and SECRET.encode() not in reply.body, (method, path)
    assert served.ask("DELETE", f"{proxy}/all", served.bearer).status >= 400
    listed = served.ask("GET", f"{proxy}?path=all", served.bearer)
    assert listed.status >= 400 and b'"secret"' not in listed.body
    assert (served.outside / "secret").read_text() == SECRET
    assert [each.name for each in served.outside.iterdir() if each.is_file()] == ["secret"]
    assert served.ask("PUT", f"{proxy}/real/file", served.bearer, b"mine").status == 200
    assert served.ask("GET", f"{proxy}/real/file", served.bearer).body == b"mine"
    assert (served.folder / "mlflow" / "artifacts" / "real" / "file").read_bytes() == b"mine"
    assert served.ask("DELETE", f"{proxy}/real/file", served.bearer).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/ajax-api/3.0/mlflow/assistant/message",
        "/ajax-api/3.0/mlflow/assistant/skills/install",
        "/api/2.0/mlflow/webhooks",
        "/ajax-api/2.0/mlflow/webhooks/x/test",
    ],
)
def test_what_runs_programs_or_calls_elsewhere_is_not_offered(served: Served, path: str) -> None:
    """Not even to the owner: a link given to a reader is to show a run."""
    reply = served.call("POST", path, message="x", url="http://127.0.0.1:1", name="x")
    assert reply.status == 404 and b"does not offer" in reply.body


def test_pipes_and_devices_among_files_hang_nothing(served: Served) -> None:
    run, folder = _planted(served, "run")
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    assert served.call("GET", f"/get-artifact?run_id={run}&path=pipe").status == 400
