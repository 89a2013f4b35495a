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
    import convert
    import corpus
    import data
    import export
    import fast
    import layers
    import optimizer
    import reference_small_models as reference
    from model import Decoder, Run
    from shapes import SHAPES, TINY_SHAPES

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


class Corpus:
    """One document of text without pattern"""
    def __init__(self, size):
        self.bytes = numpy.random.default_rng(1).integers(32, 127, size).astype(numpy.uint8)
        self.starts, self.sizes = numpy.array([0]), numpy.array([size])


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

    def test_test_document(self):
        class Text:
            window = staticmethod(lambda rng, size: numpy.full(size, 46, numpy.uint8))
        text, starts = corpus.test_document(numpy.random.default_rng(1), Text, 2049, [0.0, 0.5, 1.0])
        self.assertEqual(len(text), 2049)
        for depth, start in zip((0.0, 0.5, 1.0), starts):
            line = bytes(text[start - corpus.VALUE.start : start + corpus.DIGITS + 1])
            self.assertTrue(line[corpus.VALUE].isdigit() and line[corpus.KEY].isalpha())
            self.assertEqual(bytes(text).count(line), 2)
            self.assertLess(abs(bytes(text).find(line) / 2049 - depth), 0.06)

    def test_sampler(self):
        """Every question has its needle before it, and every repeated piece its source; weights are where they belong."""
        sampler = data.Sampler(Corpus(20000), "cpu", 1)
        tokens, weights, positions = sampler.batch(40, 768, 1.0, 0.0, 16)
        self.assertEqual((tokens.shape, weights.shape, positions.shape), ((40, 769), (40, 768), (40, 16)))
        for row, of_row, at in zip(tokens, weights, positions):
            answers = of_row == data.ANSWER_WEIGHT
            for start in answers.nonzero().flatten().tolist()[:: corpus.DIGITS]:
                text = bytes(row[: start + 1 + corpus.DIGITS].to(torch.uint8).tolist())
                self.assertEqual(text.count(text[-corpus.DIGITS - 14 :]), 2)
            self.assertEqual(int((of_row == 0).sum()), int(answers.sum()) // corpus.DIGITS * (corpus.DIGITS + 6))
            self.assertGreaterEqual(int(answers[at].sum()), min(8, int(answers.sum())))
        tokens, weights, _ = sampler.batch(40, 768, 0.0, 1.0, 2)
        self.assertGreater(int((weights == 0).any(1).sum()), 5)
        for row, of_row in zip(tokens.tolist(), weights.tolist()):
            if 0.0 in of_row:  # random text: what counts in the loss is there twice
                first = [i for i in range(1, len(of_row) - 8) if of_row[i] and not of_row[i - 1]]
                self.assertTrue(all(bytes(row).count(bytes(row[i + 1 : i + 9])) >= 2 for i in first))

    def test_fast_equals_decoder(self):
        """Losses and gradients of the arrangement for training are those of the model that is exported and evaluated."""
        for architecture in ARCHITECTURES:
            model = Decoder({"architecture": architecture} | reference.TINY[architecture])
            for layer in model.layers:
                torch.nn.init.normal_(layer.attention_output, std=0.2)
                torch.nn.init.normal_(layer.down, std=0.2)
            torch.nn.init.normal_(model.output, std=0.2)
            model.double()
            tokens, positions = torch.randint(97, 110, (2, 145)), torch.randint(60, 144, (2, 8)).sort(1).values
            wanted = positions if architecture != "gqa_quest" else None
            for mode in ("dense", "sparse")[: 1 if wanted is None else 2]:
                run = Run(mode, wanted, "" if wanted is None else "loss")
                logits = model(tokens[:, :-1], run)
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                (loss + sum(run.losses)).backward()
                gradients = {name: p.grad for name, p in model.named_parameters()}
                model.zero_grad()
                weights = torch.ones(2, 144, dtype=torch.float64)
                quick, selector, _ = fast.Fast(model, 4.0, False).loss(tokens[:, :-1], tokens[:, 1:], weights, mode, wanted)
                (quick + selector).backward()
                self.assertLess(abs((quick - loss).item()), 1e-6)
                self.assertLess(abs(float(selector) - float(sum(run.losses))), 1e-6)
                for name, p in model.named_parameters():
                    if gradients[name] is not None:
                        difference = (p.grad - gradients[name]).abs().max() / (gradients[name].abs().max() + 1e-9)
                        self.assertLess(float(difference), 1e-4, f"{architecture} {mode} {name}")
                model.zero_grad()

    def test_latent_from_gqa(self):
        """With one KV head, all heads' attention is that of look-quest but for the latent's norm, which is made 1 here."""
        shapes = {"look-quest": dict(n_kv_heads=1), "look-dsa": dict(latent_dim=16)}
        base, model = (Decoder(TINY_SHAPES[name] | change) for name, change in shapes.items())
        for layer in base.layers:
            torch.nn.init.normal_(layer.attention_output, std=0.2)
        torch.nn.init.normal_(base.output, std=0.2)
        convert.begin(model, base)
        for layer in model.layers:
            layer.norm = lambda x, weight, norm=layer.norm: x if len(weight) == 16 else norm(x, weight)
        tokens = torch.randint(97, 110, (1, 60))
        # The base rounds keys after rope to bf16, the latent before.
        self.assertLess(float((model(tokens, Run()) - base(tokens, Run())).abs().max()), 0.05)

    def test_look_near(self):
        """First-layer heads begin with most attention about where they are meant to look."""
        model = Decoder(SHAPES["look-quest"])
        convert.look_near(model)
        layer, at = model.layers[0], torch.arange(100, 120)[None]
        x = model.embedding[torch.randint(256, (1, 200))]
        table = layers.rope_table(200, 32, model.shape["rope_theta"], x)
        q, k, _ = layer.projections(layer.norm(x, layer.attention_norm))
        q, k = layers.rope_pairs(q, table), layers.rope_pairs(k, table)
        weights = layers.attention_weights(layers.rows_at(q, at), k, at, layer.scale)[0]
        for head in range(8):
            near = sum(float(weights[head, i, 100 + i - head - 3 : 100 + i - head + 2].sum()) for i in range(20)) / 20
            self.assertGreater(near, 0.8)

    def test_optimizer(self):
        """Parameters are what the float32 weights are, those without a gradient stay, a step goes downhill."""
        model = Decoder(TINY_SHAPES["look-dsa"])
        step, tokens = optimizer.Optimizer(model, torch.bfloat16), torch.randint(97, 110, (1, 65))
        quick = fast.Fast(model, 4.0, False)
        before, losses = {name: p.detach().clone() for name, p in model.named_parameters()}, []
        step.rate.fill_(1.0)
        for _ in range(6):
            loss = quick.loss(tokens[:, :-1], tokens[:, 1:], torch.ones(1, 64), "dense")[0]
            loss.backward()
            step.step()
            step.zero()
            losses.append(float(loss))
        self.assertLess(losses[-1], losses[0] - 0.5)
        for name, p in model.named_parameters():
            self.assertEqual(p.dtype, torch.bfloat16)
            self.assertEqual(torch.equal(p, before[name].bfloat16()), "index_" in name, name)

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
