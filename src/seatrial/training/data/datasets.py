"""The files of each published data set: names, sizes, SHA-256 and download addresses.

Sizes and SHA-256 are those of TensorFlow Datasets (tensorflow_datasets/url_checksums: mnist.txt, fashion_mnist.txt,
cifar10.txt). For each file a second source that checks its downloads has the same SHA-256: torch-rb's torchvision
(MNIST, CIFAR-10) and projects that pin commit b2617bb6 of zalandoresearch/fashion-mnist. The MD5 that torchvision
checks is published next to the same SHA-256 and sizes for MNIST, Fashion-MNIST and the CIFAR-10 archive.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One published file."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """All files of one data set."""

    name: str
    downloads: tuple[Download, ...]
    mirrors: tuple[str, ...]
    """URLs that end in ``/``; a file is at the URL followed by its name. Tried in this order."""


_MNIST = DataSet(
    name="mnist",
    downloads=(
        Download(
            name="train-images-idx3-ubyte.gz",
            size_bytes=9_912_422,
            sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        Download(
            name="train-labels-idx1-ubyte.gz",
            size_bytes=28_881,
            sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        Download(
            name="t10k-images-idx3-ubyte.gz",
            size_bytes=1_648_877,
            sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        Download(
            name="t10k-labels-idx1-ubyte.gz",
            size_bytes=4_542,
            sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)
_FASHION_MNIST = DataSet(
    name="fashion-mnist",
    downloads=(
        Download(
            name="train-images-idx3-ubyte.gz",
            size_bytes=26_421_880,
            sha256="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        Download(
            name="train-labels-idx1-ubyte.gz",
            size_bytes=29_515,
            sha256="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        Download(
            name="t10k-images-idx3-ubyte.gz",
            size_bytes=4_422_102,
            sha256="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        Download(
            name="t10k-labels-idx1-ubyte.gz",
            size_bytes=5_148,
            sha256="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    mirrors=(
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
        "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/",
    ),
)
_CIFAR10 = DataSet(
    name="cifar10",
    downloads=(
        Download(
            name="cifar-10-binary.tar.gz",
            size_bytes=170_052_171,
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    mirrors=(
        "https://www.cs.toronto.edu/~kriz/",
        "https://cave.cs.toronto.edu/kriz/",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
    ),
)

DATASETS: dict[str, DataSet] = {dataset.name: dataset for dataset in (_MNIST, _FASHION_MNIST, _CIFAR10)}
"""Data sets that must be fetched, by the name of their workload."""
PUBLISHED_IMAGES = {"mnist": (60_000, 10_000), "fashion-mnist": (60_000, 10_000), "cifar10": (50_000, 10_000)}
"""Numbers of images to train and to test in their files."""
