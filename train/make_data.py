#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the training corpus: make_data.py FOLDER. Needs apt-get, dpkg-deb, pip and the two registries; a few minutes.

FOLDER gets train-NN.xz and valid-NN.xz (chunks that unpack in parallel), documents.json (where each document lies) and
SHA256SUMS of the unpacked chunks. The same versions give the same bytes; README.md has their sums.

A document is one directory tree's files in order of path, each after a line with its name, so that what a file uses is
often defined far above it. Whole packages are held out: the split is by hash of the first parts of the path."""
import concurrent.futures
import hashlib
import html
import json
import lzma
import pathlib
import re
import subprocess
import sys
import zipfile

# name: (registry, version, licence, paths taken, parts of a path that name a package)
SOURCES = {
    "golang-1.19-src": ("apt", "1.19.8-2", "BSD-3-Clause", r"go-1\.19/(src/.*\.go)$", 3),
    "rust-src": ("apt", "1.63.0+dfsg1-2", "MIT OR Apache-2.0",
                 r"rustc-1\.63\.0/((?:compiler|library/(?:std|core|alloc|proc_macro|test|unwind|portable-simd))/.*\.rs)$", 3),
    "libpython3.11-stdlib": ("apt", "3.11.2-6+deb12u9", "PSF-2.0", r"lib/(python3\.11/.*\.py)$", 2),
    "libpython3.11-testsuite": ("apt", "3.11.2-6+deb12u9", "PSF-2.0", r"lib/(python3\.11/.*\.py)$", 3),
    "python3.11-doc": ("apt", "3.11.2-6+deb12u9", "PSF-2.0", r"html/_sources/(.*\.rst\.txt)$", 2),
    "postgresql-doc-15": ("apt", "15.20-0+deb12u1", "PostgreSQL", r"html/(.*\.html)$", 1),
    "sympy": ("pip", "1.14.0", "BSD-3-Clause", r"(sympy/.*\.py)$", 2),
    "django": ("pip", "5.2.1", "BSD-3-Clause", r"(django/(?!conf/locale).*\.py)$", 3),
    "sqlalchemy": ("pip", "2.0.41", "MIT", r"(sqlalchemy/.*\.py)$", 2),
    "mypy": ("pip", "1.16.0", "MIT", r"(mypy(?:c)?/(?!typeshed).*\.py)$", 2),
    "networkx": ("pip", "3.5", "BSD-3-Clause", r"(networkx/.*\.py)$", 3),
    "pandas": ("pip", "2.3.0", "BSD-3-Clause", r"(pandas/.*\.py)$", 3),
}
HELD_OUT = 0.03             # of each source's bytes, in whole packages
DOCUMENT_BYTES = 96 << 10   # a document ends at the next directory after this many
DOCUMENT_MAX = 320 << 10
DOCUMENT_MIN = 40 << 10     # shorter rests join the document before; the longest training window is 33,024
CHUNK_BYTES = 8 << 20
FILE_MAX = 400 << 10        # above are generated tables


def fetch(name, registry, version, cache):
    """The package as {path: bytes}."""
    if registry == "apt":
        folder = cache / name
        if not folder.exists():
            subprocess.run(["apt-get", "download", f"{name}={version}"], cwd=cache, check=True)
            deb = next(cache.glob(f"{name}_*.deb"))
            subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
        return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}
    if not list(cache.glob(f"{name}-{version}-*.whl")):
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--platform",
                        "manylinux_2_17_x86_64", "--python-version", "3.11", "-d", cache, f"{name}=={version}"], check=True)
    wheel = zipfile.ZipFile(next(cache.glob(f"{name}-{version}-*.whl")))
    return {entry: zipfile.Path(wheel, entry) for entry in wheel.namelist() if not entry.endswith("/")}


def text_of(path, data):
    if path.endswith(".html"):
        body = data.decode("utf-8", "replace")
        body = re.sub(r"(?s)<(script|style|head)\b.*?</\1>", "", body)
        data = re.sub(r"\n\s*\n+", "\n\n", html.unescape(re.sub(r"<[^>]*>", "", body))).encode()
    return data


def is_table(data):
    """Tables of numbers teach nothing that looks far back and would be most of some directories."""
    return len(data) > 20000 and sum(map(data.count, b"0123456789,")) > 0.25 * len(data)


def package_of(short, parts):
    return "/".join(short.split("/")[:parts]) if short.count("/") >= parts else short.rsplit("/", 1)[0]


def held_out(texts, parts):
    """Packages for the held-out split: in order of hash, no large one, until HELD_OUT of the bytes are reached."""
    sizes = {}
    for short, data in texts:
        package = package_of(short, parts)
        sizes[package] = sizes.get(package, 0) + len(data)
    total, chosen, size = sum(sizes.values()), set(), 0
    for package in sorted(sizes, key=lambda package: hashlib.sha256(package.encode()).digest()):
        if size < HELD_OUT * total and sizes[package] < 2 * HELD_OUT * total:
            chosen.add(package)
            size += sizes[package]
    return chosen


def documents_of(name, registry, version, pattern, parts, cache):
    """[(split, name of the first file, bytes)]"""
    files = fetch(name, registry, version, cache)
    taken = sorted((match.group(1), path) for path in files if (match := re.search(pattern, path)))
    texts = [(short, text_of(path, files[path].read_bytes())) for short, path in taken]
    texts = [(short, data) for short, data in texts if 200 <= len(data) <= FILE_MAX and not is_table(data)]
    held, open_documents, done = held_out(texts, parts), {}, []
    for short, data in texts:
        folder = short.rsplit("/", 1)[0] if "/" in short else ""
        split = "valid" if package_of(short, parts) in held else "train"
        piece = f"==== {short} ====\n".encode() + data + b"\n"
        at = open_documents.get(split)
        if at and ((at["size"] >= DOCUMENT_BYTES and folder != at["folder"]) or at["size"] + len(piece) > DOCUMENT_MAX):
            done.append(at)
            at = None
        if not at:
            at = open_documents[split] = {"split": split, "name": f"{name}/{short}", "pieces": [], "size": 0}
        at["folder"] = folder
        at["pieces"].append(piece)
        at["size"] += len(piece)
    for split, rest in open_documents.items():
        before = [document for document in done if document["split"] == split]
        if rest["size"] < DOCUMENT_MIN and before:
            before[-1]["pieces"] += rest["pieces"]
        elif rest["size"] >= DOCUMENT_MIN:
            done.append(rest)
    return [(document["split"], document["name"], b"".join(document["pieces"])) for document in done]


def words_of(texts):
    """Words for the keys of needles: frequent, lower case, 4 to 9 letters."""
    counts = {}
    for text in texts[::4]:
        for word in re.findall(rb"(?<![A-Za-z_.])[a-z]{4,9}(?![A-Za-z_(.])", text):
            counts[word] = counts.get(word, 0) + 1
    best = sorted(counts, key=lambda word: (-counts[word], word))[:3000]
    return sorted(word.decode() for word in best)


def chunks_of(documents):
    """Chunks of CHUNK_BYTES, and for every document its chunk, offset and size."""
    chunks, places = [[]], []
    size = 0
    for name, text in documents:
        if size >= CHUNK_BYTES:
            chunks.append([])
            size = 0
        places.append([name, len(chunks) - 1, size, len(text)])
        chunks[-1].append(text)
        size += len(text)
    return [b"".join(chunk) for chunk in chunks], places


def compress(raw):
    return lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)


def main():
    out = pathlib.Path(sys.argv[1])
    cache = out / "packages"
    cache.mkdir(parents=True, exist_ok=True)
    splits, sources = {"train": [], "valid": []}, {}
    for name, (registry, version, licence, pattern, parts) in SOURCES.items():
        documents = documents_of(name, registry, version, pattern, parts, cache)
        sources[name] = {"version": version, "licence": licence, "train_bytes": 0, "valid_bytes": 0, "documents": len(documents)}
        for split, title, text in documents:
            splits[split].append((title, text))
            sources[name][f"{split}_bytes"] += len(text)
        print(name, sources[name], flush=True)
    index, sums = {"sources": sources}, []
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for split, documents in splits.items():
            # Neighbours come from different sources, so that a run over the chunks in order is already mixed.
            documents.sort(key=lambda document: hashlib.sha256(document[0].encode()).digest())
            chunks, places = chunks_of(documents)
            index[split] = places
            for i, (raw, packed) in enumerate(zip(chunks, pool.map(compress, chunks))):
                (out / f"{split}-{i:02}.xz").write_bytes(packed)
                sums.append(f"{hashlib.sha256(raw).hexdigest()}  {split}-{i:02}")
    index["words"] = words_of([text for _, text in splits["train"]])
    (out / "documents.json").write_text(json.dumps(index, indent=0))
    (out / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    total = sum(path.stat().st_size for path in out.glob("*.xz"))
    print(f"packed: {total} bytes")


if __name__ == "__main__":
    main()
