#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the training code on a CPU; skipped where torch is missing.

The sparse forward pass must be the arithmetic that an engine decodes with: it is compared, all tokens at once in float64,
with the numpy reference, which takes a token at a time from the exported file."""
import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "engine")]
try:
    import numpy
    import torch
except ImportError:
    torch = None

if torch:
    import data
    import export
    import layers
    import reference_small_models as reference
    from model import Decoder, Run

ARCHITECTURES = ("gqa_quest", "gqa_nsa", "mla_dsa")


@unittest.skipUnless(torch, "needs torch")
class SparseArithmetic(unittest.TestCase):
    def compare(self, architecture, n_tokens, seed, **changes):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            reference.random_tiny(path, architecture, seed, **changes)
            # Few different bytes, so that keys repeat and ties of scores come up.
            tokens = numpy.random.default_rng(seed).integers(97, 123, n_tokens)
            slow = reference.Model(path)
            expected = numpy.stack([slow.step(int(token)) for token in tokens])
            model = export.load(path, torch.float64)
            got = model(torch.from_numpy(tokens)[None], Run("sparse"))[0].numpy()
            dense = model(torch.from_numpy(tokens)[None], Run("dense"))[0].numpy()
        # A number that falls on another side of a bf16 boundary in the last bit of float64 is all that may differ.
        self.assertLess(numpy.abs(got - expected).max(), 1e-6 * numpy.abs(expected).max())
        return numpy.abs(dense - expected).max() / numpy.abs(expected).max()

    def test_equals_reference(self):
        for architecture in ARCHITECTURES:
            for seed, n_tokens in ((1, 150), (2, 97), (3, 7)):
                with self.subTest(architecture=architecture, n_tokens=n_tokens):
                    difference = self.compare(architecture, n_tokens, seed)
                    if n_tokens > 90:  # the test means something only where the selection leaves tokens out
                        self.assertGreater(difference, 1e-3)

    def test_other_shapes(self):
        self.compare("mla_dsa", 90, 4, index_dtype="bf16", index_rope_dim=16, top_k=20, n_heads=2)
        self.compare("gqa_nsa", 120, 5, compress_tokens=12, block_tokens=16, n_first=0, n_local=1, n_blocks=3, window=7, n_kv_heads=1)
        self.compare("gqa_quest", 110, 6, page_tokens=8, top_k=24, dense_layers=0, n_kv_heads=4)

    def test_pieces(self):
        """Masks made a few queries at a time give the same."""
        whole = layers.MASK_ELEMENTS
        try:
            import attention_dsa
            import attention_nsa
            for module in (layers, attention_dsa, attention_nsa):
                module.MASK_ELEMENTS = 1 << 8
            for architecture in ARCHITECTURES:
                self.compare(architecture, 200, 7)
        finally:
            for module in (layers, attention_dsa, attention_nsa):
                module.MASK_ELEMENTS = whole


@unittest.skipUnless(torch, "needs torch")
class Parts(unittest.TestCase):
    def test_top_mask_prefers_lower_of_equal(self):
        scores = torch.tensor([[1.0, 2.0, 1.0, 1.0, 3.0, 9.0]])
        allowed = torch.tensor([[True, True, True, True, True, False]])
        self.assertEqual(layers.top_mask(scores, 3, allowed)[0].nonzero().flatten().tolist(), [0, 1, 4])
        self.assertEqual(layers.top_mask(scores, 5, allowed)[0].nonzero().flatten().tolist(), [0, 1, 2, 3, 4])

    def test_pack_index_scale(self):
        """448 * 2^n exactly needs the scale 2^n, a little more twice that."""
        for value in (448.0, 449.0, 3.5, 1e-9):
            x = torch.tensor([[value, value / 3, 0.0, -value / 7]], dtype=torch.float64)
            self.assertTrue(numpy.array_equal(layers.pack_index(x, "e4m3").numpy(), reference.e4m3(x.numpy())))

    def test_export_layout(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.safetensors")
            for architecture in ARCHITECTURES:
                shape = {"architecture": architecture} | reference.TINY[architecture]
                export.save(Decoder(shape), path)
                raw = pathlib.Path(path).read_bytes()
                size = struct.unpack("<Q", raw[:8])[0]
                header = json.loads(raw[8 : 8 + size])
                self.assertEqual(json.loads(header.pop("__metadata__")["hisparse"]), shape)
                self.assertEqual({name: tuple(entry["shape"]) for name, entry in header.items()}, reference.tensor_shapes(shape))
                self.assertEqual(8 + size + max(entry["data_offsets"][1] for entry in header.values()), len(raw))

    def test_needles(self):
        class Text:
            words = [f"word{chr(97 + i)}" for i in range(26)]
            window = staticmethod(lambda rng, size: numpy.full(size, 46, numpy.uint8))
        rng = numpy.random.default_rng(1)
        text, starts = data.test_document(rng, Text, 2049, [0.0, 0.5, 1.0])
        self.assertEqual(len(text), 2049)
        for start in starts:
            value = bytes(text[start : start + data.DIGITS])
            self.assertTrue(value.isdigit())
            self.assertEqual(bytes(text).count(value), 2)
        for _ in range(50):
            text, weights = data.needle_window(rng, Text, 1025)
            self.assertEqual((len(text), len(weights)), (1025, 1025))
            self.assertTrue(bytes(text[weights == data.ANSWER_WEIGHT]).isdigit())
            self.assertEqual((weights == 0).sum(), (weights == data.ANSWER_WEIGHT).sum())

    def test_gradients_reach_everything(self):
        """Every tensor learns in the phases that train it, and the indexer's loss leaves the rest of the model alone."""
        for architecture in ARCHITECTURES:
            model = Decoder({"architecture": architecture} | reference.TINY[architecture])
            torch.nn.init.normal_(model.output, std=0.1)
            for layer in model.layers:
                torch.nn.init.normal_(layer.attention_output, std=0.1)
                torch.nn.init.normal_(layer.down, std=0.1)
            tokens = torch.randint(256, (2, 128), generator=torch.Generator().manual_seed(1))
            run = Run("sparse", torch.randint(60, 128, (2, 16)).sort().values, "" if architecture == "gqa_quest" else "loss")
            logits = model(tokens, run)
            if architecture == "mla_dsa":
                sum(run.losses).backward(retain_graph=True)
                touched = {name.split(".")[-1].split("_")[0] for name, p in model.named_parameters() if p.grad is not None}
                self.assertEqual(touched, {"index"})
            (logits.square().mean() + sum(run.losses)).backward()
            for name, p in model.named_parameters():
                self.assertTrue(p.grad is not None and p.grad.abs().sum() > 0, f"{architecture} {name}")


if __name__ == "__main__":
    unittest.main(verbosity=1)
