"""The pictures of the pages are made from the commands that the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest

from homophily.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def size(picture: Path) -> tuple[int, int]:
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_a_picture_of_each_kind_is_made(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for what it shows: a run that is running, the round of the slider, the table of a comparison."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import page_pictures as pictures

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(pictures, "RUN", f"{pictures.RUN.replace('rounds=30', 'rounds=4 peers=8')}")
    folder = here / "work"
    folder.mkdir()
    try:
        with pictures.chromium() as browser:
            long = pictures.LIVE.replace("rounds=30", "rounds=100000 checkpoint=1 peers=8")
            pictures.live(browser, folder, here / "live.png", long, round=3)
            pictures.merges(browser, folder, here / "merges.png")
            pictures.phone(browser, folder, here / "phone.png")
            short = pictures.COMPARE.replace("rounds=20", "rounds=2 peers=8").replace("0,1,2,3,4", "0,1")
            pictures.comparison(browser, folder, here / "comparison.png", short)
    except UserError as error:
        if "no Chromium" in str(error):
            pytest.skip(str(error))
        raise
    before = (here / "merges.png").stat().st_size
    pictures.shrink(here / "merges.png")
    assert (here / "merges.png").stat().st_size < before
    assert [size(here / f"{name}.png") for name in ("live", "merges", "phone", "comparison")] == [
        (1280, 1000), (1280, 1000), (390, 900), (1280, 1000)
    ]  # fmt: skip


def test_the_pages_show_the_commands_of_their_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import page_pictures as pictures

    live, report = ((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("live.md", "report.md"))
    assert f"homophily {pictures.LIVE} --live\n" in live
    assert f"homophily {pictures.FOLLOW}\n" in live
    for command in (pictures.RUN, pictures.COMPARE):
        assert f"homophily {command.partition(' --out')[0]}" in " ".join(report.split())
    for name in pictures.PICTURES:
        assert f"({name})" in (live if name == "live.png" else report)
