"""The pictures of the MMC4 corpus, out of their documents, against the crops of OpenFlamingo's pipeline."""

import base64
import json
import os
import tarfile
from pathlib import Path

GOLDENS = Path(os.environ["FLOE_SOURCE_DIR"]) / "tests/goldens/data"


def documents():
    """By (shard, key), those that are JSON."""
    found = {}
    for path in sorted((GOLDENS / "corpus/mmc4").glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                try:
                    found[path.name, member.name.split(".")[0]] = json.load(tar.extractfile(member))
                except ValueError:
                    pass
    return found


def picture(document, place):
    if isinstance(place, int):
        return base64.b64decode(document["image_info"][place]["image_base64"])
    return base64.b64decode(document["image_map"][place]["base64_image"])


def test_crops(look):
    corpus = documents()
    files, expected = [], []
    for golden in json.loads((GOLDENS / "golden/mmc4_docs.json").read_text())["docs"]:
        result = golden["result"]["neox"]
        if result["status"] != "kept":
            continue
        document = corpus[golden["shard"], golden["key"]]
        files += [picture(document, place) for place in result["images_in_order"]]
        expected += golden["crop_u8_sha256"]
    assert len(files) == len(expected) == 98
    assert [row["crop"] for row in look(files)] == expected
