"""Pillow is the reference of decoding: which files are pictures, and their bytes as RGB."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin


def picture(width=61, height=47, mode="RGB", seed=0):
    """Shapes and noise, so that every filter, predictor and upsampling has something to do."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    bands = [
        (x * 255 // max(width - 1, 1)) ^ (y * 3),
        y * 255 // max(height - 1, 1),
        np.where((x // 7 + y // 5) % 2, 230, 20),
        (x * y) % 256,
    ]
    pixels = np.stack(bands, axis=-1) + generator.integers(-6, 7, (height, width, 4))
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8), "RGBA")
    if mode == "I;16":
        wide = (np.asarray(image.convert("L")).astype(np.uint16) << 2) + (x % 3).astype(np.uint16)
        return Image.fromarray(wide)
    return image.convert(mode)


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def cuts(data, dense=40):
    """A file cut off at many places: everywhere near its ends, and here and there between."""
    places = {*range(dense), *range(len(data) - dense, len(data)), *range(0, len(data), max(1, len(data) // 60))}
    return {f"first {place} of {len(data)}": data[:place] for place in sorted(places) if 0 <= place < len(data)}


def flips(data, count, seed, begin=0):
    generator = np.random.default_rng(seed)
    files = {}
    for _ in range(count):
        damaged = bytearray(data)
        place = int(generator.integers(begin, len(data)))
        damaged[place] ^= 1 << int(generator.integers(8))
        files[f"byte {place} is {damaged[place]}"] = bytes(damaged)
    return files


# ------------------------------------------------------------------------------------------- JPEG


def test_jpeg_of_pillow(compare):
    files = {}
    for width, height in [(61, 47), (1, 1), (8, 8), (17, 1), (1, 33), (16, 16), (224, 300)]:
        for subsampling in (0, 1, 2):
            for progressive in (False, True):
                name = f"{width}x{height} subsampling {subsampling} progressive {progressive}"
                image = picture(width, height)
                files[name] = saved(image, "JPEG", subsampling=subsampling, progressive=progressive, quality=60)
    for mode in ("L", "CMYK", "RGB"):
        for quality in (5, 95):
            files[f"{mode} {quality}"] = saved(picture(mode=mode), "JPEG", quality=quality)
    exif = Image.Exif()
    exif[0x0112] = 6
    files["exif"] = saved(picture(), "JPEG", exif=exif, icc_profile=b"no profile", comment=b"c")
    files["keep_rgb"] = saved(picture(), "JPEG", keep_rgb=True)
    files["restart"] = saved(picture(), "JPEG", restart_marker_blocks=2)
    files["optimised"] = saved(picture(), "JPEG", optimize=True)
    files["bytes behind"] = files["exif"] + b"more" * 100
    files["thumbnail"] = saved(picture(), "JPEG", exif=b"Exif\0\0" + saved(picture(20, 20), "JPEG"))
    assert compare(files) == len(files)


@pytest.mark.parametrize("space", ["gray", "rgb", "ycc", "cmyk", "ycck"])
def test_jpeg_of_all_kinds(space, compare, make_jpeg):
    mode = {"gray": "L", "rgb": "RGB", "ycc": "RGB", "cmyk": "CMYK", "ycck": "CMYK"}[space]
    num_components = len(mode) if mode != "L" else 1
    files = {}
    for first in ("1x1", "2x1", "2x2", "1x2", "4x1", "4x2", "2x4"):
        if num_components == 4 and first in ("4x2", "2x4"):
            continue  # more blocks than a JPEG may have
        sample = ",".join([first, *["1x1"] * (num_components - 1)])
        kinds = ([], ["progressive"], ["arithmetic"], ["arithmetic", "progressive"], ["restart=3"], ["no-markers"])
        for more, size in [*((kind, (35, 18)) for kind in kinds), ([], (61, 47)), (["progressive"], (3, 2))]:
            pixels = np.asarray(picture(*size, mode=mode))
            name = f"{sample} {more} {size}"
            files[name] = make_jpeg(pixels, f"space={space}", f"sample={sample}", "quality=70", *more)
    assert compare(files) == len(files)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 4}, {"quality": 20}])
def test_jpeg_cut_off(options, compare):
    data = saved(picture(96, 80), "JPEG", **options)
    assert compare(cuts(data)) < 10  # at most a lost end mark goes unnoticed


def test_jpeg_cut_off_other_kinds(compare, make_jpeg):
    for space, mode in [("gray", "L"), ("ycck", "CMYK")]:
        data = make_jpeg(np.asarray(picture(40, 40, mode=mode)), f"space={space}")
        assert compare(cuts(data)) < 10


def test_jpeg_headers_damaged(compare):
    """Bits flipped before the scan: other tables, sizes, markers. Pixels may differ between versions
    of libjpeg only where the entropy-coded data is damaged."""
    data = saved(picture(64, 64), "JPEG")
    files = {f"without bytes 2 to {place}": data[:2] + data[place:] for place in (20, 25, 89, 158)}
    assert data.index(b"\xff\xda") > 158
    for place in range(2, 158, 3):  # the application header and the quantisation tables
        damaged = bytearray(data)
        damaged[place] ^= 0x15
        files[f"byte {place}"] = bytes(damaged)
    compare(files)


def test_jpeg_odd_markers(compare):
    data = saved(picture(), "JPEG")
    files = {
        "fill bytes": data[:2] + b"\xff\xff\xff" + data[2:],
        "junk between": data[:20] + b"\0\0\0" + data[20:],
        "unknown application": data[:20] + b"\xff\xe9\0\x05abc" + data[20:],
        "comment": data[:20] + b"\xff\xfe\0\x05abc" + data[20:],
        "adobe without length": data[:20] + b"\xff\xee\0\x07Adobe" + data[20:],
        "jfif without length": data[:2] + b"\xff\xe0\0\x06JFIF" + data[20:],
        "no length": data[:20] + b"\xff\xe9\0\0" + data[20:],
        "unknown marker": data[:20] + b"\xff\x42" + data[20:],
        "marker alone": data[:20] + b"\xff\xf3" + data[20:],
        "zero behind": data[:20] + b"\xff\0" + data[20:],
        "short table": data[:20] + b"\xff\xdb\0\x05\0\1\2" + data[20:],
        "frame of 7 bytes": data[:20] + b"\xff\xde\0\x09\x08\0\1\0\1\1\1" + data[20:],
        "two pictures": data + data,
        "12 bits": data.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
        "2 components": saved(picture(mode="L"), "JPEG").replace(b"\xff\xc0\0\x0b\x08", b"\xff\xc0\0\x0b\x07"),
    }
    compare(files)


# -------------------------------------------------------------------------------------------- PNG

PNG_KINDS = [
    *[(bits, 0) for bits in (1, 2, 4, 8, 16)],
    *[(bits, 3) for bits in (1, 2, 4, 8)],
    *[(bits, kind) for kind in (2, 4, 6) for bits in (8, 16)],
]
GRIDS = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(name, data, checksum=None):
    if checksum is None:
        checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


def png_rows(width, height, bits, kind, interlaced, generator):
    """Random rows with random filters; what the pixels are, does not matter."""
    per_pixel = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    rows = b""
    for x, y, step_x, step_y in GRIDS if interlaced else [(0, 0, 1, 1)]:
        count = -(-(width - x) // step_x)
        if count <= 0:
            continue
        for _ in range(y, height, step_y):
            size = (count * bits * per_pixel + 7) // 8
            rows += bytes([generator.integers(5)]) + generator.integers(0, 256, size, dtype=np.uint8).tobytes()
    return rows


def png(width=29, height=23, bits=8, kind=2, interlaced=0, seed=0, before=b"", after=b"", palette=None, pieces=1):
    generator = np.random.default_rng(seed)
    data = zlib.compress(png_rows(width, height, bits, kind, interlaced, generator))
    if palette is None:
        palette = generator.integers(0, 256, 3 << bits, dtype=np.uint8).tobytes() if kind == 3 else b""
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, interlaced))
    out += chunk(b"PLTE", palette) if palette else b""
    out += before
    for number in range(pieces):
        begin, end = len(data) * number // pieces, len(data) * (number + 1) // pieces
        out += chunk(b"IDAT", data[begin:end])
    return out + after + chunk(b"IEND", b"")


@pytest.mark.parametrize("interlaced", [0, 1])
def test_png_of_all_kinds(interlaced, compare):
    files = {}
    for bits, kind in PNG_KINDS:
        for size in [(29, 23), (1, 1), (2, 3), (5, 1), (1, 9), (8, 8), (64, 3)]:
            files[f"{bits} bits, colours {kind}, {size}"] = png(*size, bits, kind, interlaced, seed=len(files))
    assert compare(files) == len(files)


def test_png_of_pillow(compare):
    files = {mode: saved(picture(mode=mode), "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")}
    files["P with one transparent"] = saved(picture(mode="P"), "PNG", transparency=3)
    files["P with alphas"] = saved(picture(mode="P"), "PNG", transparency=bytes(range(200)))
    files["RGB with transparent"] = saved(picture(), "PNG", transparency=(1, 2, 3))
    files["L with transparent"] = saved(picture(mode="L"), "PNG", transparency=7)
    files["1 with transparent"] = saved(picture(mode="1"), "PNG", transparency=0)
    files["two bits"] = saved(picture(mode="L").quantize(4), "PNG", bits=2)
    text = PngImagePlugin.PngInfo()
    text.add_text("key", "value" * 1000, zip=True)
    text.add_itxt("key", "völlig" * 100, "de", "Schlüssel", zip=True)
    files["text"] = saved(picture(), "PNG", pnginfo=text, icc_profile=b"no profile", dpi=(72, 72))
    files["animation"] = saved(
        picture(), "PNG", save_all=True, append_images=[picture(seed=1), picture(seed=2)], duration=5
    )
    files["animation apart"] = saved(
        picture(), "PNG", save_all=True, append_images=[picture(seed=1)], default_image=True
    )
    assert compare(files) == len(files)


def test_png_palettes(compare):
    files = {
        "short": png(kind=3, palette=b"abc" * 7),
        "none": png(kind=3, palette=b""),
        "not whole colours": png(kind=3, palette=b"abc" * 9 + b"x"),
        "257 colours": png(kind=3, palette=b"abc" * 257),
        "256 colours and a bit": png(kind=3, palette=b"abc" * 256 + b"xx"),
        "of a gray picture": png(kind=0, palette=b"abc" * 7),
        "transparent and none": png(kind=3, palette=b"", before=chunk(b"tRNS", b"\0")),
    }
    compare(files)


def test_png_chunks(compare):
    bomb = zlib.compress(bytes(1 << 21))
    nearly = zlib.compress(bytes((1 << 20) - 1))
    fits = zlib.compress(bytes(1000))
    bodies = {
        "gAMA": [b"", b"abc", b"abcd", b"abcdef"],
        "cHRM": [b"", b"abc", b"abcd" * 8, b"abcd" * 2],
        "sRGB": [b"", b"\0", b"ab"],
        "pHYs": [b"", b"12345678", b"12345678\1", b"12345678\2zz"],
        "tRNS": [b"", b"a", b"ab", b"abcdef"],
        "tEXt": [b"", b"key", b"key\0value", b"\0value", b"k\xff\0v\xff"],
        "zTXt": [b"", b"key", b"key\0", b"key\0\0" + fits, b"key\0\1" + fits, b"key\0\0" + bomb, b"key\0\0junk"]
        + [b"key\0\0" + nearly, b"key\0\0" + fits[:-3]],
        "iTXt": [b"", b"key", b"key\0\0", b"key\0\0\0\0\0text", b"key\0\1\0\0\0" + fits, b"key\0\1\0\0\0" + bomb]
        + [b"key\0\1\1\0\0" + bomb, b"key\0\0\0\0\0\xff", b"key\0\1\0\0\0junk"],
        "iCCP": [b"", b"a", b"name", b"name\0", b"name\0\0" + fits, b"name\0\1" + fits, b"name\0\0" + bomb, b"\0\0junk"],
        "eXIf": [b"", b"junk"],
        "acTL": [b"", b"\0\0\0\2\0\0\0\0", b"\0\0\0\0\0\0\0\0", b"\xff" * 8],
        "fcTL": [b"", struct.pack(">IIIIIHHBB", 0, 29, 23, 0, 0, 1, 1, 0, 0)]
        + [struct.pack(">IIIIIHHBB", 0, 9, 8, 3, 4, 1, 1, 0, 0), struct.pack(">IIIIIHHBB", 1, 9, 8, 3, 4, 1, 1, 0, 0)]
        + [struct.pack(">IIIIIHHBB", 0, 29, 23, 1, 0, 1, 1, 0, 0), struct.pack(">IIIIIHHBB", 0, 0, 8, 3, 4, 1, 1, 0, 0)],
        "fdAT": [b"", b"\0\0\0\0", b"\0\0\0\1" + zlib.compress(bytes(88 * 23))],
        "prVt": [b"", b"whatever"],
        "CRIT": [b"what"],
        "a_9Z": [b"what"],
    }
    files = {}
    for name, contents in bodies.items():
        for number, body in enumerate(contents):
            good = chunk(name.encode(), body)
            bad = chunk(name.encode(), body, checksum=1)
            for place in ("before", "after"):
                for kind in (0, 2, 3):
                    files[f"{name} {number} {place}, colours {kind}"] = png(kind=kind, **{place: good})
                files[f"{name} {number} {place}, wrong checksum"] = png(**{place: bad})
    compare(files)


def test_png_structure(compare):
    whole = png(pieces=5)
    header = whole[:33]
    rows = png_rows(29, 23, 8, 2, 0, np.random.default_rng(0))
    data = lambda packed: header + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    files = {
        "pieces": whole,
        "empty pieces": header + chunk(b"IDAT", b"") * 3 + whole[33:],
        "no header": whole[:8] + whole[33:],
        "header twice": whole[:33] + whole[8:],
        "no data": header + chunk(b"IEND", b""),
        "no end": whole[:-12],
        "bytes behind": whole + b"more",
        "chunk between data": png(before=b"", pieces=1)[:-12] + chunk(b"tEXt", b"a\0b") + chunk(b"IDAT", b"x"),
        "bad name": header + chunk(b"I\xffAT", b"") + whole[33:],
        "wrong checksum of data": header + chunk(b"IDAT", zlib.compress(rows), checksum=7) + chunk(b"IEND", b""),
        "too few rows": data(zlib.compress(rows[: 88 * 10])),
        "rows and a half": data(zlib.compress(rows[: 88 * 10 + 40])),
        "one row too many": data(zlib.compress(rows + rows[:88])),
        "bytes behind data": data(zlib.compress(rows) + b"junk"),
        "no checksum of zlib": data(zlib.compress(rows)[:-4]),
        "wrong checksum of zlib": data(zlib.compress(rows)[:-1] + b"!"),
        "unknown filter": data(zlib.compress(b"\5" + rows[1:])),
        "stored": data(zlib.compress(rows, 0)),
        "compression method": header[:26] + b"\1" + header[27:],
        "no zlib": data(b"junk" * 100),
    }
    for number, fields in enumerate([(0, 5, 8, 2, 0, 0, 0), (5, 0, 8, 2, 0, 0, 0), (5, 5, 3, 2, 0, 0, 0), (5, 5, 8, 1, 0, 0, 0)]
                                    + [(5, 5, 8, 2, 1, 0, 0), (5, 5, 8, 2, 0, 1, 0), (5, 5, 8, 2, 0, 0, 9)]):
        body = struct.pack(">IIBBBBB", *fields)
        files[f"header {fields}"] = whole[:8] + chunk(b"IHDR", body) + whole[33:]
        files[f"long header {fields}"] = whole[:8] + chunk(b"IHDR", body + b"more") + whole[33:]
        files[f"short header {fields}"] = whole[:8] + chunk(b"IHDR", body[:-1]) + whole[33:]
    compare(files)


@pytest.mark.parametrize("interlaced", [0, 1])
def test_png_cut_off(interlaced, compare):
    compare(cuts(png(interlaced=interlaced, pieces=3, after=chunk(b"tEXt", b"key\0value")), dense=90))
    compare(cuts(png(kind=3, bits=4, interlaced=interlaced, width=90, height=70)))
    compare(cuts(saved(picture(), "PNG")))


def test_png_damaged(compare):
    compare(flips(png(pieces=2), 300, seed=1))
    compare(flips(saved(picture(40, 30), "PNG"), 300, seed=2))


# ------------------------------------------------------------------------------------------- WebP


def test_webp(compare):
    files = {}
    for size in [(61, 47), (1, 1), (16, 16), (17, 33), (224, 300)]:
        for mode in ("RGB", "RGBA"):
            for options in ({"lossless": True}, {"quality": 60}, {"quality": 95, "method": 6}, {"quality": 5}):
                files[f"{mode} {size} {options}"] = saved(picture(*size, mode), "WEBP", **options)
    files["exact"] = saved(picture(mode="RGBA"), "WEBP", lossless=True, exact=True)
    files["metadata"] = saved(picture(), "WEBP", exif=b"Exif\0\0junk", icc_profile=b"no profile", xmp=b"<x/>")
    frames = [picture(seed=1), picture(seed=2)]
    files["animation"] = saved(picture(), "WEBP", save_all=True, append_images=frames, duration=10)
    files["animation with alpha"] = saved(
        picture(mode="RGBA"), "WEBP", save_all=True, append_images=frames, background=(9, 8, 7, 200)
    )
    files["bytes behind"] = files["metadata"] + b"more"
    assert compare(files) == len(files)


def test_webp_frame_smaller_than_canvas(compare):
    """An animation whose first frame lies at (10, 6) of a larger canvas."""
    for mode in ("RGB", "RGBA"):
        still = saved(picture(20, 12, mode), "WEBP", lossless=True)[12:]
        if still[:4] == b"VP8X":
            still = still[18:]
        three = lambda number: struct.pack("<I", number)[:3]
        frame = three(5) + three(3) + three(19) + three(11) + three(100) + b"\0" + still
        body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\x12\0\0\0" + three(60) + three(46)
        body += b"ANIM" + struct.pack("<I", 6) + b"\x10\x20\x30\xff\0\0" + b"ANMF" + struct.pack("<I", len(frame)) + frame
        assert compare({mode: b"RIFF" + struct.pack("<I", len(body)) + body}) == 1


def test_webp_cut_off(compare):
    for data in [
        saved(picture(), "WEBP", quality=80),
        saved(picture(mode="RGBA"), "WEBP", lossless=True),
        saved(picture(), "WEBP", save_all=True, append_images=[picture(seed=1)]),
        saved(picture(), "WEBP", exif=b"Exif\0\0junk"),
    ]:
        compare(cuts(data, dense=30))


def test_webp_damaged(compare):
    compare(flips(saved(picture(), "WEBP", lossless=True), 150, seed=3))
    compare(flips(saved(picture(), "WEBP", quality=70, exif=b"Exif\0\0junk"), 150, seed=4))


# -------------------------------------------------------------------------------------------- GIF


def gif(screen=(61, 47), frame=(0, 0, 61, 47), flags=0, palette=None, global_palette=None, before=b"", pixels=None, bits=8):
    """A GIF from its parts; `pixels` is a saved GIF whose compressed data is taken."""
    out = b"GIF89a" + struct.pack("<HH", *screen)
    if global_palette is None:
        out += b"\0\0\0"
    else:
        out += bytes([0x80 | (len(global_palette) // 3).bit_length() - 2, 5, 0]) + global_palette
    out += before
    if palette is not None:
        flags |= 0x80 | (len(palette) // 3).bit_length() - 2
    out += b"," + struct.pack("<HHHH", *frame) + bytes([flags]) + (palette or b"")
    return out + bytes([bits]) + pixels + b";"


def lzw(levels, bits=8):
    """Uncompressed LZW: a clear mark before every 100 codes."""
    number, length = 0, 0
    for i, level in enumerate(levels):
        for code in ([1 << bits] if i % 100 == 0 else []) + [int(level)]:
            number |= code << length
            length += bits + 1
    number |= ((1 << bits) + 1) << length
    data = number.to_bytes((length + bits + 1 + 7) // 8, "little")
    return b"".join(bytes([len(part)]) + part for part in (data[i : i + 200] for i in range(0, len(data), 200))) + b"\0"


RAMP = bytes(level for level in range(256) for _ in range(3))
COLOURS = np.random.default_rng(5).integers(0, 256, 768, dtype=np.uint8).tobytes()
LEVELS = np.random.default_rng(6).integers(0, 256, 61 * 47)


def control(transparent):
    return b"!\xf9\x04" + bytes([1 if transparent is not None else 0, 0, 0, transparent or 0]) + b"\0"


def test_gif_of_pillow(compare):
    files = {}
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        for interlace in (0, 1):
            for size in [(61, 47), (1, 1), (5, 2), (3, 9)]:
                files[f"{mode} {interlace} {size}"] = saved(picture(*size, mode), "GIF", interlace=interlace)
    few = picture().quantize(11)
    files["eleven colours"] = saved(few, "GIF")
    files["transparent"] = saved(few, "GIF", transparency=3)
    frames = [picture(seed=1), picture(seed=2)]
    files["animation"] = saved(picture(), "GIF", save_all=True, append_images=frames, disposal=2, comment=b"hello" * 100)
    files["large"] = saved(picture(500, 400), "GIF")
    assert compare(files) == len(files)


def test_gif_parts(compare):
    pixels = lzw(LEVELS)
    small = lzw(LEVELS[: 20 * 10])
    nibbles = lzw(LEVELS % 16, bits=4)
    files = {
        "global": gif(global_palette=COLOURS, pixels=pixels),
        "local": gif(palette=COLOURS, pixels=pixels),
        "both": gif(palette=COLOURS, global_palette=COLOURS[::-1], pixels=pixels),
        "none": gif(pixels=pixels),
        "gray global": gif(global_palette=RAMP, pixels=pixels),
        "gray local": gif(palette=RAMP, pixels=pixels),
        "gray local, global": gif(palette=RAMP, global_palette=COLOURS, pixels=pixels),
        "global, gray local short": gif(palette=RAMP[:48], global_palette=COLOURS, pixels=pixels),
        "gray global short": gif(global_palette=RAMP[:48], pixels=pixels),
        "short": gif(global_palette=COLOURS[:48], pixels=pixels),
        "four bits": gif(global_palette=COLOURS[:48], pixels=nibbles, bits=4),
        "interlaced": gif(flags=64, global_palette=COLOURS, pixels=pixels),
        "inside": gif(frame=(30, 20, 20, 10), global_palette=COLOURS, pixels=small),
        "inside, transparent": gif(frame=(30, 20, 20, 10), global_palette=COLOURS, pixels=small, before=control(77)),
        "inside, gray": gif(frame=(30, 20, 20, 10), pixels=small, before=control(77)),
        "inside, not transparent": gif(frame=(30, 20, 20, 10), global_palette=COLOURS, pixels=small, before=control(None)),
        "sticks out": gif(frame=(50, 44, 20, 10), global_palette=COLOURS, pixels=small),
        "no screen": gif(screen=(0, 0), frame=(5, 4, 20, 10), global_palette=COLOURS, pixels=small),
        "no width": gif(frame=(0, 0, 0, 10), global_palette=COLOURS, pixels=small),
        "no height": gif(frame=(0, 0, 10, 0), global_palette=COLOURS, pixels=small),
        "comments": gif(pixels=pixels, before=b"!\xfe\x05hello\x05world\0!\xfe\0"),
        "application": gif(pixels=pixels, before=b"!\xff\x0bNETSCAPE2.0\x03\1\0\0\0"),
        "application cut": gif(pixels=pixels, before=b"!\xff\x0bNETSCAPE2.0\0\0"),
        "unknown extension": gif(pixels=pixels, before=b"!\x42\x03abc\0"),
        "extension of nothing": gif(pixels=pixels, before=b"!\x42\0\0"),
        "short control": gif(pixels=pixels, before=b"!\xf9\x02\1\0\0"),
        "control of three": gif(pixels=pixels, before=b"!\xf9\x03\0\0\0\0"),
        "junk before": gif(pixels=pixels, before=b"junk"),
        "two controls": gif(frame=(30, 20, 20, 10), pixels=small, before=control(7) + control(None)),
        "bits 13": gif(pixels=pixels, bits=13),
        "bits 12": gif(pixels=lzw(LEVELS, bits=12), bits=12),
        "bits 9": gif(pixels=lzw(LEVELS, bits=9), bits=9, global_palette=COLOURS),
        "bits 1": gif(pixels=lzw(LEVELS % 2, bits=1), bits=1, global_palette=COLOURS),
        "too few pixels": gif(pixels=small),
        "too many pixels": gif(pixels=lzw(np.concatenate([LEVELS, LEVELS[:500]])), global_palette=COLOURS),
        "only trailer": b"GIF89a" + struct.pack("<HH", 4, 4) + b"\0\0\0;",
        "no trailer": gif(pixels=pixels)[:-1],
        "87a": b"GIF87a" + gif(global_palette=COLOURS, pixels=pixels)[6:],
        "88a": b"GIF88a" + gif(global_palette=COLOURS, pixels=pixels)[6:],
    }
    assert compare(files) > 20


def test_gif_cut_off(compare):
    compare(cuts(saved(picture(), "GIF"), dense=60))
    compare(cuts(saved(picture(), "GIF", interlace=0, save_all=True, append_images=[picture(seed=1)]), dense=60))


def test_gif_damaged(compare):
    data = saved(picture(), "GIF", interlace=0)
    compare(flips(data, 200, seed=7))
    compare(flips(data, 300, seed=8, begin=800))


# ------------------------------------------------------------------------------------ sizes, others


def test_bombs(compare):
    """Twice Pillow's limit of pixels is an error, the limit itself only a warning."""
    header = lambda width, height: png(before=b"")[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    rows = lambda width, height: chunk(b"IDAT", zlib.compress(bytes(((width + 7) // 8 + 1) * height)))
    files = {}
    for width, height in [(10000, 9000), (13377, 13377), (13378, 13378)]:
        files[f"{width}x{height}"] = header(width, height) + rows(width, height) + chunk(b"IEND", b"")
    files["65535"] = saved(picture(8, 8), "JPEG").replace(b"\0\x11\x08\0\x08\0\x08", b"\0\x11\x08\xff\xff\xff\xff")
    files["2^31"] = header(1 << 31, 1 << 31) + rows(8, 8)
    assert compare(files) == 2


def test_not_a_picture(compare):
    files = {"empty": b"", "text": b"<html>", "zeros": bytes(1000), "only magic": b"\xff\xd8\xff", "magic": b"\xff\xd8"}
    files["noise"] = np.random.default_rng(9).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    files["riff"] = b"RIFF\x10\0\0\0WAVEfmt "
    assert compare(files) == 0
