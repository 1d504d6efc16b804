"""Data files are found in the user's folders or the cache, or downloaded into the cache."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from homophily.data import files
from homophily.data.files import Published, cache_folder, find_files
from homophily.errors import UserError

ONE, TWO = b"the first file", b"the second file " * 100_000  # the second takes more than one read


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Mirror:
    """A web server on this machine: the files it serves and the requests it received."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []
        self.breaks = False  # announce more bytes than are sent
        mirror = self

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                mirror.asked.append(self.path)
                super().do_GET()

            def send_header(self, keyword: str, value: str) -> None:
                longer = mirror.breaks and keyword == "Content-Length"
                super().send_header(keyword, str(int(value) + 10) if longer else value)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def put(self, path: str, content: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(content)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    root = tmp_path / "served"
    root.mkdir()
    mirror = Mirror(root)
    thread = threading.Thread(target=partial(mirror.server.serve_forever, poll_interval=0.01))
    thread.start()
    monkeypatch.setenv("HOMOPHILY_MIRROR", mirror.url + "/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield mirror
    mirror.server.shutdown()
    mirror.server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def small_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small data sets, an empty cache, no folders, and a mirror that is offline unless a test starts it."""
    singly = Published("http://127.0.0.1:9/", {"one.gz": sha(ONE), "two.bin": sha(TWO)})
    packed = Published("http://127.0.0.1:9/", {"train.bin": sha(ONE), "test.bin": sha(TWO)}, archive="all.tar.gz")
    monkeypatch.setattr(files, "PUBLISHED", {"singly": singly, "packed": packed})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOMOPHILY_MIRROR", "http://127.0.0.1:9")
    monkeypatch.delenv("HOMOPHILY_DATA", raising=False)


def put(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"anything: files found are not checked again")
    return folder


def everything_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# folders and the cache


def test_the_cache_is_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache" / "homophily" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache_folder() == Path("/home/ada/.cache/homophily/data")


def test_the_first_folder_with_all_files_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put(tmp_path / "a" / "singly", "one.gz")
    put(tmp_path / "b" / "singly", "one.gz", "two.bin")
    put(tmp_path / "c" / "singly", "one.gz", "two.bin")
    monkeypatch.setenv("HOMOPHILY_DATA", os.pathsep.join(str(tmp_path / name) for name in ("none", "a", "", "b", "c")))
    folder = tmp_path / "b" / "singly"
    assert find_files("singly", ["two.bin", "one.gz"]) == [folder / "two.bin", folder / "one.gz"]


def test_an_unpacked_file_is_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = put(tmp_path / "singly", "one", "two.bin")
    monkeypatch.setenv("HOMOPHILY_DATA", str(tmp_path))
    assert find_files("singly", ["one.gz", "two.bin"]) == [folder / "one", folder / "two.bin"]


def test_a_pattern_gives_its_matches_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put(tmp_path / "a" / "packed", "train_1.bin")  # no test.bin: passed over
    folder = put(tmp_path / "b" / "packed", "train_2.bin", "test.bin", "train_1.bin", "train_1.bin.xz")
    (folder / "train_0.bin").mkdir()
    monkeypatch.setenv("HOMOPHILY_DATA", f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}")
    found = find_files("packed", ["train*.bin", "test.bin"])
    assert [path.name for path in found] == ["train_1.bin", "train_2.bin", "test.bin"]
    assert {path.parent for path in found} == {folder}


def test_the_cache_is_searched_after_the_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cached = put(cache_folder() / "singly", "one.gz")
    monkeypatch.setenv("HOMOPHILY_DATA", str(tmp_path))
    assert find_files("singly", ["one.gz"]) == [cached / "one.gz"]
    named = put(tmp_path / "singly", "one.gz")
    assert find_files("singly", ["one.gz"]) == [named / "one.gz"]


# downloads


def test_missing_files_are_downloaded_into_the_cache_once(mirror: Mirror) -> None:
    mirror.put("singly/one.gz", ONE)
    mirror.put("singly/two.bin", TWO)
    for _ in range(2):
        one, two = find_files("singly", ["one.gz", "two.bin"])
        assert (one.read_bytes(), two.read_bytes()) == (ONE, TWO)
    assert mirror.asked == ["/singly/one.gz", "/singly/two.bin"]
    assert everything_under(cache_folder()) == ["singly/one.gz", "singly/two.bin"]


def test_only_files_missing_from_the_cache_are_downloaded(mirror: Mirror) -> None:
    put(cache_folder() / "singly", "one.gz")
    mirror.put("singly/two.bin", TWO)
    find_files("singly", ["one.gz", "two.bin"])
    assert mirror.asked == ["/singly/two.bin"]


def test_a_wrong_checksum_is_reported_and_nothing_is_kept(mirror: Mirror) -> None:
    mirror.put("singly/one.gz", b"something else")
    with pytest.raises(UserError) as error:
        find_files("singly", ["one.gz"])
    expected, got = sha(ONE), sha(b"something else")
    assert f"the SHA-256 of one.gz should be {expected} but is {got}, so it was deleted" in str(error.value)
    assert everything_under(cache_folder()) == []


def test_a_connection_that_breaks_is_reported_and_nothing_is_kept(mirror: Mirror) -> None:
    mirror.put("singly/one.gz", ONE)
    mirror.breaks = True
    with pytest.raises(UserError, match=f"the connection broke after {len(ONE)} of {len(ONE) + 10} bytes"):
        find_files("singly", ["one.gz"])
    assert everything_under(cache_folder()) == []


def test_the_error_names_the_missing_files_the_folders_and_the_reason(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(tmp_path / "a" / "singly", "one.gz")
    monkeypatch.setenv("HOMOPHILY_DATA", f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}")
    with pytest.raises(UserError) as error:
        find_files("singly", ["one.gz", "two.bin"])
    assert str(error.value) == (
        f"data set 'singly' was not found in {tmp_path}/a/singly (no two.bin), {tmp_path}/b/singly (no one.gz), "
        f"{cache_folder()}/singly (no one.gz), and could not be downloaded: "
        f"{mirror.url}/singly/one.gz: HTTP Error 404: File not found; "
        "if you have its files, set HOMOPHILY_DATA to the folder that contains singly/one.gz"
    )


def test_without_a_network_the_reason_is_reported() -> None:
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:9/singly/one\.gz: \[Errno \d+\] Connection refused;"):
        find_files("singly", ["one.gz"])


def test_an_invalid_mirror_url_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMOPHILY_MIRROR", "nonsense")
    with pytest.raises(UserError, match=r"could not be downloaded: nonsense/singly/one\.gz: unknown url type"):
        find_files("singly", ["one.gz"])


def test_a_cache_that_cannot_be_written_is_reported(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"could not be downloaded: .*Not a directory"):
        find_files("singly", ["one.gz"])


def test_a_data_set_without_a_url_is_not_downloaded() -> None:
    with pytest.raises(UserError, match=r"data set 'mine' was not found in .*no URL is known for it"):
        find_files("mine", ["x.npz"])


def test_a_terminal_shows_progress(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    mirror.put("singly/two.bin", TWO)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "200")
    find_files("singly", ["two.bin"])
    assert f"{mirror.url}/singly/two.bin" in terminal.getvalue()
    assert "1.6/1.6 MB" in terminal.getvalue()


def test_without_a_terminal_no_progress_is_shown(mirror: Mirror, capfd: pytest.CaptureFixture[str]) -> None:
    mirror.put("singly/one.gz", ONE)
    find_files("singly", ["one.gz"])
    assert capfd.readouterr() == ("", "")


# archives


def archive(members: dict[str, bytes | None]) -> bytes:
    """A tar.gz of files; None makes a link to /etc/passwd."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content or b""))
    return packed.getvalue()


def test_only_the_expected_files_are_unpacked_from_an_archive(mirror: Mirror, tmp_path: Path) -> None:
    members = {"../../escaped.bin": b"!", "folder/readme.txt": b"!", "folder/train.bin": ONE, "folder/test.bin": TWO}
    mirror.put("packed/all.tar.gz", archive({**members, "/tmp/more.bin": b"!"}))
    before = everything_under(tmp_path)
    train, test = find_files("packed", ["train*.bin", "test.bin"])
    assert (train.read_bytes(), test.read_bytes()) == (ONE, TWO)
    new = set(everything_under(tmp_path)) - set(before)
    assert new == {f"cache/homophily/data/packed/{name}" for name in ("train.bin", "test.bin")}


def test_a_link_in_an_archive_is_never_used_as_a_file(mirror: Mirror) -> None:
    mirror.put("packed/all.tar.gz", archive({"train.bin": None, "test.bin": TWO}))
    with pytest.raises(UserError, match=r"all\.tar\.gz does not contain train\.bin"):
        find_files("packed", ["train*.bin", "test.bin"])
    assert everything_under(cache_folder()) == ["packed/test.bin"]


def test_a_member_with_a_wrong_checksum_is_not_kept(mirror: Mirror) -> None:
    mirror.put("packed/all.tar.gz", archive({"train.bin": ONE, "test.bin": ONE}))
    with pytest.raises(UserError, match=rf"the SHA-256 of test\.bin should be {sha(TWO)} but is {sha(ONE)}"):
        find_files("packed", ["train*.bin", "test.bin"])
    assert everything_under(cache_folder()) == ["packed/train.bin"]


@pytest.mark.parametrize("content", [b"no archive at all", archive({"train.bin": os.urandom(9999)})[:-5000], b""])
def test_a_damaged_archive_is_reported_and_nothing_is_kept(mirror: Mirror, content: bytes) -> None:
    mirror.put("packed/all.tar.gz", content)
    with pytest.raises(UserError, match=r"could not be downloaded: .*all\.tar\.gz"):
        find_files("packed", ["train*.bin", "test.bin"])
    assert everything_under(cache_folder()) == []


# the real table


def test_every_published_file_has_a_url_and_a_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert set(files.PUBLISHED) == {"mnist", "fashion-mnist", "cifar-10", "cifar-100", "heart-disease"}
    for published in files.PUBLISHED.values():
        assert published.base.startswith("http")
        assert published.base.endswith("/")
        assert all(len(bytes.fromhex(checksum)) == 32 for checksum in published.files.values())


def test_the_checksums_are_those_of_the_real_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    folders = [Path(entry) for entry in os.environ.get("HOMOPHILY_DATA", "").split(os.pathsep) if entry]
    sums = {Path(name) / file: sum_ for name, p in files.PUBLISHED.items() for file, sum_ in p.files.items()}
    real = {folder / path: sum_ for folder in folders for path, sum_ in sums.items() if (folder / path).exists()}
    if not real:
        pytest.skip("HOMOPHILY_DATA leads to no data files: the table of checksums was not compared with real files")
    assert {path: sha(path.read_bytes()) for path in real} == real
