"""Finding data files: in the user's folders, then in the cache; missing files are downloaded into the cache."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Protocol

from homophily.errors import UserError

FOLDERS_VARIABLE = "HOMOPHILY_DATA"  # folders to search, separated like PATH; a file is at FOLDER/<data set>/<file>
MIRROR_VARIABLE = "HOMOPHILY_MIRROR"  # base URL to download from instead of the publisher's: URL/<data set>/<file>

_CHUNK = 1 << 20  # bytes per read
_TIMEOUT = 30.0  # seconds without a response


@dataclass(frozen=True)
class Published:
    """Where a data set is published: ``files`` at ``base``, or all of them in one tar.gz ``archive`` there."""

    base: str
    files: Mapping[str, str]  # name -> SHA-256
    archive: str | None = None


PUBLISHED: Mapping[str, Published] = {
    "mnist": Published(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": Published(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    "cifar-10": Published(
        "https://www.cs.toronto.edu/~kriz/",
        {
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        archive="cifar-10-binary.tar.gz",
    ),
    "cifar-100": Published(
        "https://www.cs.toronto.edu/~kriz/",
        {
            "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
            "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
        },
        archive="cifar-100-binary.tar.gz",
    ),
    "heart-disease": Published(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
        {
            "processed.cleveland.data": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
            "processed.hungarian.data": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
            "processed.switzerland.data": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
            "processed.va.data": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
        },
    ),
}


def cache_folder() -> Path:
    """Where downloads are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "homophily" / "data"


def searched(name: str) -> list[Path]:
    """Where the files of a data set are looked for: in the folders that the user names, then in the cache."""
    named = [Path(entry).expanduser() for entry in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if entry]
    return [folder / name for folder in (*named, cache_folder())]


def find_files(name: str, wanted: Sequence[str]) -> list[Path]:
    """Return the paths of a data set's files, in the order of ``wanted``: names, or patterns such as train*.bin.

    The matches of a pattern are sorted. All files come from the first folder that has every one of them. If no folder
    has, the files that the cache lacks are downloaded.
    """
    folders = searched(name)
    cache = folders[-1]
    for folder in folders:
        found = [_matches(folder, pattern) for pattern in wanted]
        if all(found):
            return [path for paths in found for path in paths]
    try:
        _download(name, wanted, cache)
    except _CannotDownload as reason:
        looked = ", ".join(f"{folder} (no {_first_missing(folder, wanted)})" for folder in folders)
        raise UserError(
            f"data set {name!r} was not found in {looked}, and could not be downloaded: {reason}; "
            f"if you have its files, set {FOLDERS_VARIABLE} to the folder that contains {name}/{wanted[0]}"
        ) from None
    return [path for pattern in wanted for path in _matches(cache, pattern)]


def _matches(folder: Path, pattern: str) -> list[Path]:
    """Return the folder's files with this name or pattern; for a .gz, an unpacked file is accepted as well."""
    for name in dict.fromkeys((pattern, pattern.removesuffix(".gz"))):
        if found := sorted(path for path in folder.glob(name) if path.is_file()):
            return found
    return []


def _first_missing(folder: Path, wanted: Sequence[str]) -> str:
    return next(pattern for pattern in wanted if not _matches(folder, pattern))


class _CannotDownload(Exception):
    """A download failed; the message is the reason, for the end of find_files' error message."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _download(name: str, wanted: Sequence[str], folder: Path) -> None:
    """Download the wanted files that ``folder`` lacks."""
    if name not in PUBLISHED:
        raise _CannotDownload("no URL is known for it")
    published = PUBLISHED[name]
    lacking = [pattern for pattern in wanted if not _matches(folder, pattern)]
    sums = {file: sha for file, sha in published.files.items() if any(fnmatch(file, pattern) for pattern in lacking)}
    mirror = os.environ.get(MIRROR_VARIABLE)
    base = f"{mirror.rstrip('/')}/{name}/" if mirror else published.base
    url = base
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if published.archive is not None:
            url = base + published.archive
            _fetch_members(url, sums, folder)
            return
        for file, sha in sums.items():
            url = base + file
            with _opened(url) as stream:
                _store(stream, folder / file, sha)
    except (OSError, http.client.HTTPException, tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        reason = error.reason if type(error) is urllib.error.URLError else error  # str(URLError) wraps the reason
        raise _CannotDownload(f"{url}: {reason}") from error


def _fetch_members(url: str, sums: Mapping[str, str], folder: Path) -> None:
    """Unpack the files in ``sums`` (name to SHA-256) from an archive while it is downloaded."""
    left = dict(sums)
    with _opened(url) as stream, tarfile.open(fileobj=stream, mode="r|gz") as archive:
        for member in archive:
            file = PurePosixPath(member.name).name
            content = archive.extractfile(member) if member.isfile() and file in left else None
            if content is not None:
                _store(content, folder / file, left.pop(file))
            if not left:
                return
    raise _CannotDownload(f"{url} does not contain {', '.join(left)}")


def _store(stream: _Readable, target: Path, sha256: str) -> None:
    """Copy the stream to ``target``, which appears only after it is complete and its checksum is verified."""
    digest = hashlib.sha256()
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with open(handle, "wb") as file:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != sha256:
            raise _CannotDownload(
                f"the SHA-256 of {target.name} should be {sha256} but is {digest.hexdigest()}, so it was deleted"
            )
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


class _ProgressReader(io.RawIOBase):
    """Reads a response, reports progress, and raises ConnectionError if the response ends too early."""

    def __init__(self, response: _Readable, size: int | None, advance: Callable[[int], None]) -> None:
        self._response, self._size, self._advance = response, size, advance
        self._seen = 0

    def read(self, size: int = _CHUNK, /) -> bytes:
        chunk = self._response.read(size)
        self._seen += len(chunk)
        self._advance(len(chunk))
        if not chunk and self._size is not None and self._seen < self._size:
            raise ConnectionError(f"the connection broke after {self._seen} of {self._size} bytes")
        return chunk


@contextmanager
def _opened(url: str) -> Iterator[_ProgressReader]:
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as response:
        length = response.headers.get("Content-Length")
        size = int(length) if length else None
        with _progress(url, size) as advance:
            yield _ProgressReader(response, size, advance)


@contextmanager
def _progress(url: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a progress bar by some bytes; without a terminal it does nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(url, total=size)
        yield lambda n: bars.advance(task, n)
