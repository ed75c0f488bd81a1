"""Files that come with messages: what is kept, what is refused, what is shown of it. (H10)"""

from __future__ import annotations

import base64
import io
import os
import struct
import time
import zlib
from pathlib import Path

import PIL.Image
import pytest

from teaagentd.attachments import MAX_BYTES, MOST_PICTURES, Attachments
from teaagentd.errors import FileRefused, StoreUnavailable
from teaagentd.types import Attachment, LLMMessage, Picture

pytestmark = pytest.mark.anyio


@pytest.fixture
def files(tmp_path: Path) -> Attachments:
    return Attachments(tmp_path / "files")


def drawn(kind: str = "PNG", size: tuple[int, int] = (8, 8), color: str = "red") -> bytes:
    out = io.BytesIO()
    PIL.Image.new("RGB", size, color).save(out, kind)
    return out.getvalue()


async def shown(files: Attachments, *kept: Attachment, sees: bool = True) -> dict[str, object]:
    message = LLMMessage(role="user", content="see", attachments=kept)
    return dict(await files.shown([message], sees=sees))


def picture(found: object) -> PIL.Image.Image:
    assert isinstance(found, Picture)
    opened = PIL.Image.open(io.BytesIO(base64.b64decode(found.data)))
    opened.load()
    assert PIL.Image.MIME[opened.format or ""] == found.media_type
    return opened


async def test_a_picture_is_kept_and_shown_as_it_came(files: Attachments) -> None:
    data = drawn()
    kept = await files.keep(data, name="a b.png")
    assert (kept.media_type, kept.name, kept.size) == ("image/png", "a b.png", len(data))
    assert files.place(kept).read_bytes() == data
    found = (await shown(files, kept))[kept.path]
    assert isinstance(found, Picture)
    assert base64.b64decode(found.data) == data
    assert files.place(kept).parent.stat().st_mode & 0o077 == 0


async def test_the_same_file_is_kept_once(files: Attachments) -> None:
    first = await files.keep(drawn(), name="one.png")
    second = await files.keep(drawn(), name="two.png")
    assert first.path == second.path
    assert len(list(files.place(first).parent.iterdir())) == 1
    assert await files.find(first.path, name="one.png") == first


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
async def test_every_common_kind_is_shown_in_one_that_all_take(
    files: Attachments, kind: str
) -> None:
    kept = await files.keep(drawn(kind), name="x", media_type="application/octet-stream")
    assert kept.media_type == f"image/{kind.lower()}"
    assert picture((await shown(files, kept))[kept.path]).format in ("PNG", "JPEG")


async def test_the_bytes_say_what_it_is_and_not_its_name_or_type(files: Attachments) -> None:
    kept = await files.keep(drawn("JPEG"), name="x.png", media_type="image/png")
    assert kept.media_type == "image/jpeg"
    assert picture((await shown(files, kept))[kept.path]).format == "JPEG"


async def test_a_large_picture_is_shown_smaller_upright_and_without_its_place(
    files: Attachments,
) -> None:
    image = PIL.Image.new("RGB", (3000, 2000), "blue")
    exif = image.getexif()
    exif[0x0112] = 6
    exif.get_ifd(0x8825)[1] = "N"
    out = io.BytesIO()
    image.save(out, "JPEG", exif=exif)
    kept = await files.keep(out.getvalue(), name="photo.jpg")
    seen = picture((await shown(files, kept))[kept.path])
    assert seen.size == (1045, 1568)
    assert not seen.getexif()
    assert files.place(kept).read_bytes() == out.getvalue()


def _bomb() -> bytes:
    """A few bytes of PNG that unfold to gigabytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    idat = zlib.compress(bytes(1000))
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", idat), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(
    ("data", "name", "why"),
    [
        (b"", "x.png", "empty"),
        (drawn(size=(400, 300))[:-60], "x.png", "cut-off PNG"),
        (drawn("JPEG", size=(400, 300))[:300], "x.jpg", "send it again"),
        (b"\x89PNG\r\n\x1a\n", "x.png", "send it again"),
        (b"no picture", "x.png", "not a picture"),
        (b"\0\0\0\x18ftypheic" + bytes(100), "x.jpg", "HEIC picture.*JPEG or PNG"),
        (_bomb(), "x.png", "pixels"),
        (bytes(30_000_000), "x.bin", "28.6 MB, and 20 are the most"),
    ],
    ids=["empty", "png", "jpeg", "head", "text", "heic", "bomb", "30 MB"],
)
async def test_what_cannot_be_used_is_refused_and_not_kept(
    files: Attachments, tmp_path: Path, data: bytes, name: str, why: str
) -> None:
    with pytest.raises(FileRefused, match=why) as refused:
        await files.keep(data, name=name)
    assert name in str(refused.value)
    assert not list((tmp_path / "files").glob("*"))


async def test_a_file_of_the_largest_size_is_kept(files: Attachments) -> None:
    kept = await files.keep(bytes(MAX_BYTES), name="x.bin")
    assert await shown(files, kept) == {}


async def test_a_text_is_shown_and_what_is_none_is_not(files: Attachments) -> None:
    text = await files.keep("Grüße".encode(), name="notes.md")
    broken = await files.keep(b"\xff\xfe\x00", name="broken.txt")
    assert await shown(files, text, broken, sees=False) == {text.path: "Grüße"}


async def test_a_model_that_does_not_see_is_given_no_picture(files: Attachments) -> None:
    assert await shown(files, await files.keep(drawn()), sees=False) == {}


async def test_of_many_pictures_the_newest_are_shown_and_the_first_changes_seldom(
    files: Attachments,
) -> None:
    kept = [
        await files.keep(drawn(size=(8 + n, 8)), name=f"{n}") for n in range(MOST_PICTURES + 11)
    ]
    firsts = []
    for count in range(1, len(kept) + 1):
        found = await shown(files, *kept[:count])
        assert 0 < len(found) <= MOST_PICTURES
        assert kept[count - 1].path in found
        firsts.append(next(n for n in range(count) if kept[n].path in found))
    assert sorted(set(firsts)) == [0, 10, 20]


async def test_what_no_message_names_goes_and_what_was_handed_in_just_now_stays(
    files: Attachments,
) -> None:
    old, new, named = [await files.keep(drawn("GIF", (8 + n, 8)), name="x") for n in range(3)]
    for one in (old, named):
        for place in files.place(one).parent.glob(f"{one.path}*"):
            os.utime(place, (time.time() - 1000,) * 2)
    assert await files.sweep([named.path]) == 1
    assert await files.find(old.path) is None
    left = {place.name for place in files.place(new).parent.iterdir()}
    assert left == {f"{one.path}{end}" for one in (new, named) for end in ("", ".shown")}
    assert await files.sweep([named.path]) == 0


async def test_a_file_that_is_gone_is_left_out(files: Attachments) -> None:
    kept = await files.keep(drawn())
    files.place(kept).unlink()
    assert await shown(files, kept) == {}


@pytest.mark.parametrize("path", ["../state.db", "/etc/passwd", "a.png", "0" * 64, ""])
async def test_no_path_leads_out_of_the_folder(files: Attachments, path: str) -> None:
    assert await files.find(path) is None
    named = Attachment(path=path, media_type="text/plain", name="x", size=1)
    with pytest.raises(ValueError, match="no file of this folder"):
        files.place(named)
    assert await shown(files, named) == {}


async def test_a_folder_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("no folder")
    with pytest.raises(StoreUnavailable, match="the file was not kept"):
        await Attachments(tmp_path / "files").keep(drawn())
