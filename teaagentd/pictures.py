"""Pictures: whether a file is a whole one, and a copy of it that every model's server takes."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from teaagentd.errors import FileRefused

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS: Final = 64_000_000
"""A picture of 250 kB can unfold to gigabytes; this many pixels take some 200 MB for a moment."""
LONGEST_SIDE: Final = 1568
"""Pixels: vendors scale down what is larger, and charge for it.
https://docs.anthropic.com/en/docs/build-with-claude/vision"""
MOST_BYTES: Final = 1_000_000
"""Of a picture as it is sent."""
_AS_IT_IS = {"PNG": "image/png", "JPEG": "image/jpeg"}
"""What every server takes, and all that some of those at home do."""
_READ = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF")
_UNREADABLE = {
    b"ftypheic": "a HEIC picture",
    b"ftypheix": "a HEIC picture",
    b"ftyphevc": "a HEIC picture",
    b"ftypmif1": "a HEIF picture",
    b"ftypmsf1": "a HEIF picture",
}
_QUALITIES = (85, 70, 50)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """A whole picture. `copy` is what a model is shown instead of the file, None if that itself
    will do: it is upright, small enough, and says nothing of where it was taken."""

    media_type: str
    copy: bytes | None


def looks_like_one(data: bytes) -> bool:
    """Whether the bytes begin as those of a picture, whatever the file is called."""
    return _is_heif(data) is not None or _format(data) is not None


def check(data: bytes) -> Checked:
    """Takes some 0.1 s and 200 MB for a large one: call it in a worker thread, one at a time.
    Raises `FileRefused` for what is no picture, or none that can be shown."""
    if kind := _is_heif(data):
        raise FileRefused(f"it is {kind}, which cannot be read here: send it as JPEG or PNG")
    image = _opened(data)
    try:
        return _checked(image, data)
    except (OSError, SyntaxError, ValueError, EOFError, MemoryError) as error:
        raise FileRefused(
            f"it is a damaged or cut-off {image.format} picture: send it again"
        ) from error


def _checked(image: Image, data: bytes) -> Checked:
    import PIL.Image
    import PIL.ImageOps

    kind = image.format or ""
    media_type = PIL.Image.MIME.get(kind, "image/png")
    told = bool(image.getexif()) or bool(image.info.get("icc_profile"))
    image.load()
    small = max(image.size) <= LONGEST_SIDE and len(data) <= MOST_BYTES
    animated = getattr(image, "n_frames", 1) > 1
    if kind in _AS_IT_IS and small and not told and not animated:
        return Checked(media_type=media_type, copy=None)
    upright = PIL.ImageOps.exif_transpose(image)
    upright.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    return Checked(media_type=media_type, copy=_written(upright, sharp=kind != "JPEG"))


def _written(image: Image, *, sharp: bool) -> bytes:
    """As PNG where that keeps lines and letters `sharp` and is not large, else as JPEG."""
    import PIL.Image

    out = io.BytesIO()
    if sharp:
        image.convert("RGBA" if image.has_transparency_data else "RGB").save(out, "PNG")
        if out.tell() <= MOST_BYTES:
            return out.getvalue()
    if image.has_transparency_data:
        paper = PIL.Image.new("RGBA", image.size, "white")
        paper.alpha_composite(image.convert("RGBA"))
        image = paper
    plain = image.convert("RGB")
    for quality in _QUALITIES:
        out = io.BytesIO()
        plain.save(out, "JPEG", quality=quality)
        if out.tell() <= MOST_BYTES:
            break
    return out.getvalue()


def _opened(data: bytes) -> Image:
    import PIL.Image

    with warnings.catch_warnings():
        # The limit is our own, and an error: see below.
        warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)
        try:
            image = PIL.Image.open(io.BytesIO(data), formats=_READ)
        except PIL.Image.DecompressionBombError as error:
            raise FileRefused(f"it has more than {MAX_PIXELS // 10**6} million pixels") from error
        except (OSError, SyntaxError, ValueError) as error:
            raise FileRefused("it is not a picture, or a damaged one: send it again") from error
    if image.width * image.height > MAX_PIXELS:
        raise FileRefused(
            f"it has {image.width} times {image.height} pixels, and more than "
            f"{MAX_PIXELS // 10**6} million are not read: send it smaller"
        )
    return image


def _is_heif(data: bytes) -> str | None:
    return _UNREADABLE.get(data[4:12])


def _format(data: bytes) -> str | None:
    begins = {
        b"\x89PNG\r\n\x1a\n": "PNG",
        b"\xff\xd8\xff": "JPEG",
        b"GIF8": "GIF",
        b"BM": "BMP",
        b"II*\x00": "TIFF",
        b"MM\x00*": "TIFF",
    }
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:12] in (b"ftypavif", b"ftypavis"):
        return "AVIF"
    return next((kind for first, kind in begins.items() if data.startswith(first)), None)
