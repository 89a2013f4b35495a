#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a tiny Llama model with random weights as a GGUF file: the right shape and keys, no sense in its words.

The same options give the same bytes. Only the Python standard library is needed.
"""
import argparse
import math
import random
import struct
import sys

ALIGNMENT = 32
WORDS = ("the and that was his with for they have from had not are but what all were when your said there use "
         "an each which she do how their if will up other about out many then them these so some her").split()

# Value types of metadata, numbered as in the format.
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
# Kinds of tokens, likewise.
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


# Weights. Quantised types get random codes under a scale chosen for the wanted standard deviation; the scale's sign is
# random where codes are not centred, so that no row leans to one side.

def half(value):
    return struct.pack("<e", value)


def plain(code):
    def write(rng, n, std):
        return struct.pack(f"<{n}{code}", *(rng.gauss(0, std) for _ in range(n)))
    return write


def bfloat16(rng, n, std):
    floats = struct.pack(f"<{n}f", *(rng.gauss(0, std) for _ in range(n)))
    return b"".join(floats[i + 2:i + 4] for i in range(0, 4 * n, 4))


def blocks(make_block, block_numbers):
    def write(rng, n, std):
        return b"".join(make_block(rng, std) for _ in range(n // block_numbers))
    return write


def uniform_std(n_codes):
    return math.sqrt((n_codes * n_codes - 1) / 12)


def centred(n_codes, n_bytes):
    def block(rng, std):
        return half(rng.choice((-1, 1)) * std / uniform_std(n_codes)) + rng.randbytes(n_bytes)
    return blocks(block, 32)


def with_minimum(n_codes, n_bytes):
    def block(rng, std):
        scale = std / uniform_std(n_codes)
        return half(scale) + half(-scale * (n_codes - 1) / 2) + rng.randbytes(n_bytes)
    return blocks(block, 32)


def pack_k_scales(scales):
    """Eight six-bit scales, each also the minimum of its sub-block, in the twelve bytes of Q4_K and Q5_K."""
    first = [scales[i] | scales[i + 4] >> 4 << 6 for i in range(4)]
    last = [scales[i + 4] & 15 | (scales[i + 4] & 15) << 4 for i in range(4)]
    return bytes(first + first + last)


def big_with_minimum(n_codes, n_bytes):
    def block(rng, std):
        scale = std / uniform_std(n_codes) / 48
        scales = [rng.randint(32, 63) for _ in range(8)]
        return half(scale) + half(scale * (n_codes - 1) / 2) + pack_k_scales(scales) + rng.randbytes(n_bytes)
    return blocks(block, 256)


def q6_k_block(rng, std):
    scales = [rng.choice((-1, 1)) * rng.randint(64, 127) for _ in range(16)]
    return rng.randbytes(192) + struct.pack("<16b", *scales) + half(std / uniform_std(64) / 96)


# name: number in the format, numbers a block, writer
TYPES = {
    "F32": (0, 1, plain("f")),
    "F16": (1, 1, plain("e")),
    "BF16": (30, 1, bfloat16),
    "Q4_0": (2, 32, centred(16, 16)),
    "Q4_1": (3, 32, with_minimum(16, 16)),
    "Q5_0": (6, 32, centred(32, 20)),
    "Q5_1": (7, 32, with_minimum(32, 20)),
    "Q8_0": (8, 32, centred(256, 32)),
    "Q4_K": (12, 256, big_with_minimum(16, 128)),
    "Q5_K": (13, 256, big_with_minimum(32, 160)),
    "Q6_K": (14, 256, blocks(q6_k_block, 256)),
}


# Vocabularies

def byte_characters():
    """The printable character that stands for each byte in GPT-2 vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def word_steps(start):
    """Merges that build each word of the list letter by letter after `start`, without repeats."""
    steps = {}
    for word in WORDS:
        built = start
        for letter in word:
            steps[(built, letter)] = None
            built += letter
    return list(steps)


def gpt2_vocabulary():
    merges = word_steps("\u0120")
    tokens = byte_characters() + [a + b for a, b in merges] + ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    end = tokens.index("<|endoftext|>")
    return tokens, [
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "gpt-2"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.token_type", ARRAY, (I32, [NORMAL] * end + [CONTROL] * (len(tokens) - end))),
        ("tokenizer.ggml.merges", ARRAY, (STRING, [f"{a} {b}" for a, b in merges])),
        ("tokenizer.ggml.bos_token_id", U32, end),
        ("tokenizer.ggml.eos_token_id", U32, end),
        ("tokenizer.ggml.add_bos_token", BOOL, False),
    ]


def llama_vocabulary():
    words = [a + b for a, b in word_steps("\u2581")]
    letters = ["\u2581", *"etaoinshrdlucmfwygpbvkxqjz", *"ETAOINSHRDLUCMFWYGPBVKXQJZ", *"0123456789.,;:!?'\"()-"]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + words + letters
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(words) + len(letters))
    scores = [0.0] * 259 + [-float(i) for i in range(len(words) + len(letters))]
    return tokens, [
        ("tokenizer.ggml.model", STRING, "llama"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.scores", ARRAY, (F32, scores)),
        ("tokenizer.ggml.token_type", ARRAY, (I32, types)),
        ("tokenizer.ggml.unknown_token_id", U32, 0),
        ("tokenizer.ggml.bos_token_id", U32, 1),
        ("tokenizer.ggml.eos_token_id", U32, 2),
        ("tokenizer.ggml.add_bos_token", BOOL, True),
        ("tokenizer.ggml.add_space_prefix", BOOL, True),
    ]


# The model

def metadata(options, n_vocab):
    head_size = options.embd // options.heads
    return [
        ("general.architecture", STRING, "llama"),
        ("general.name", STRING, f"tiny random {options.type} model, seed {options.seed}"),
        ("llama.block_count", U32, options.layers),
        ("llama.context_length", U32, options.context),
        ("llama.embedding_length", U32, options.embd),
        ("llama.feed_forward_length", U32, options.ffn),
        ("llama.attention.head_count", U32, options.heads),
        ("llama.attention.head_count_kv", U32, options.kv_heads),
        ("llama.rope.freq_base", F32, 10000.0),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ("llama.rope.dimension_count", U32, head_size),
        ("llama.vocab_size", U32, n_vocab),
    ]


def tensors(options, n_vocab):
    """(name, dims, standard deviation) of every tensor. The embedding is small beside what the layers add, or the last
    token would win every time with tied embeddings; queries and keys are large, so that attention picks a few tokens."""
    embd, ffn, kv = options.embd, options.ffn, options.embd // options.heads * options.kv_heads
    unit, sharp = 1 / math.sqrt(embd), 1.5 / math.sqrt(embd)
    yield "token_embd.weight", (embd, n_vocab), 1.6 * unit
    yield "output_norm.weight", (embd,), 0.1
    if not options.tied:
        yield "output.weight", (embd, n_vocab), 1.6 * unit
    for layer in range(options.layers):
        for name, dims, std in (
                ("attn_norm", (embd,), 0.1),
                ("attn_q", (embd, embd), sharp),
                ("attn_k", (embd, kv), sharp),
                ("attn_v", (embd, kv), unit),
                ("attn_output", (embd, embd), unit),
                ("ffn_norm", (embd,), 0.1),
                ("ffn_gate", (embd, ffn), sharp),
                ("ffn_up", (embd, ffn), sharp),
                ("ffn_down", (ffn, embd), 1 / math.sqrt(ffn))):
            yield f"blk.{layer}.{name}.weight", dims, std


def tensor_data(rng, options, dims, std):
    if len(dims) == 1:
        return struct.pack(f"<{dims[0]}f", *(rng.gauss(1, std) for _ in range(dims[0])))
    return TYPES[options.type][2](rng, dims[0] * dims[1], std)


# The file

def string(text):
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def value(kind, content):
    if kind == STRING:
        return string(content)
    if kind == ARRAY:
        element, items = content
        return struct.pack("<IQ", element, len(items)) + b"".join(value(element, item) for item in items)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], content)


def padded(data):
    return data + bytes(-len(data) % ALIGNMENT)


def gguf(entries, tensor_list, type_number):
    table, data = [], []
    offset = 0
    for name, dims, content in tensor_list:
        kind = type_number if len(dims) > 1 else TYPES["F32"][0]
        table.append(string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
        data.append(padded(content))
        offset += len(data[-1])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(table), len(entries))
    keys = b"".join(string(key) + struct.pack("<I", kind) + value(kind, content) for key, kind, content in entries)
    return padded(head + keys + b"".join(table)) + b"".join(data)


def parse_options(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="file to write")
    parser.add_argument("--type", choices=TYPES, default="F32", help="of the two-dimensional weights; norms are F32")
    parser.add_argument("--vocab", choices=("gpt2", "llama"), default="gpt2", help="kind of tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction, default=True,
                        help="use the embedding as the output matrix too")
    for name, default in (("layers", 4), ("embd", None), ("heads", 4), ("kv-heads", 2), ("ffn", None), ("context", 512)):
        parser.add_argument(f"--{name}", type=int, default=default,
                            help=f"default {default or ('64' if name == 'embd' else '128') + ', 256 for K types'}")
    options = parser.parse_args(arguments)
    block = TYPES[options.type][1]
    options.embd = options.embd or max(64, block)
    options.ffn = options.ffn or max(128, block)
    check_options(parser, options, block)
    return options


def check_options(parser, options, block):
    for name in ("layers", "embd", "heads", "kv_heads", "ffn", "context"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.embd % (2 * options.heads):
        parser.error(f"--embd {options.embd} must be an even multiple of --heads {options.heads}")
    if options.heads % options.kv_heads:
        parser.error(f"--heads {options.heads} must be a multiple of --kv-heads {options.kv_heads}")
    if options.embd % block or options.ffn % block:
        parser.error(f"--embd {options.embd} and --ffn {options.ffn} must be multiples of {block} for {options.type}")


def main(arguments):
    options = parse_options(arguments)
    rng = random.Random(options.seed)
    tokens, vocabulary = gpt2_vocabulary() if options.vocab == "gpt2" else llama_vocabulary()
    tensor_list = [(name, dims, tensor_data(rng, options, dims, std))
                   for name, dims, std in tensors(options, len(tokens))]
    with open(options.out, "wb") as out:
        out.write(gguf(metadata(options, len(tokens)) + vocabulary, tensor_list, TYPES[options.type][0]))


if __name__ == "__main__":
    main(sys.argv[1:])
