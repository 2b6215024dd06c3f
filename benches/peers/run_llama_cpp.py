"""llama.cpp's side of a comparison: one job, given as JSON in the first argument; prints one JSON object.

The low-level functions of llama-cpp-python are llama.cpp's own; a step is one `llama_decode`, and the answer is taken by an
argmax over the logits, as greedy generation does.
"""

import ctypes
import json
import sys
import time

import llama_cpp as ll
import numpy as np

CHUNK = 512


def resident(key):
    with open("/proc/self/status") as status:
        return next(int(l.split()[1]) * 1024 for l in status if l.startswith(key))


class Model:
    def __init__(self, job):
        quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        self.quiet = quiet
        ll.llama_log_set(quiet, ctypes.c_void_p(0))
        ll.llama_backend_init()
        self.batch_size = job["batch"]
        per = job["depth"] + job["prompt"] + job["generate"] + 16
        self.model = ll.llama_model_load_from_file(job["file"].encode(), ll.llama_model_default_params())
        assert self.model, "llama.cpp does not load the file"
        params = ll.llama_context_default_params()
        params.n_ctx = -(-per * self.batch_size // 256) * 256
        params.n_batch = params.n_ubatch = CHUNK
        params.n_seq_max = self.batch_size
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = job["threads"]
        params.no_perf = True
        self.ctx = ll.llama_init_from_model(self.model, params)
        assert self.ctx, "llama.cpp makes no context"
        self.vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.memory = ll.llama_get_memory(self.ctx)
        self.batch = ll.llama_batch_init(max(CHUNK, self.batch_size), 0, 1)

    def step(self, rows, last_only=True):
        """Rows of (token, position, sequence); logits of the last or of all."""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i] = token, position, 1
            b.seq_id[i][0] = sequence
            b.logits[i] = (not last_only) or i + 1 == len(rows)
        assert ll.llama_decode(self.ctx, b) == 0, "llama_decode"

    def logits(self, i):
        return np.ctypeslib.as_array(ll.llama_get_logits_ith(self.ctx, i), (self.vocab,))

    def prefill(self, sequence, first, count):
        for at in range(0, count, CHUNK):
            rows = min(CHUNK, count - at)
            self.step([(token(i, self.vocab), first + at + i, sequence) for i in range(rows)])
        return int(self.logits(-1).argmax())

    def decode(self, first, count):
        for at in range(count):
            t = (at * 31 + 7) % self.vocab
            self.step([(t, first + at, s) for s in range(self.batch_size)], last_only=False)
            for s in range(self.batch_size):
                self.logits(s).argmax()

    def forget(self, first):
        for s in range(self.batch_size):
            ll.llama_memory_seq_rm(self.memory, s, first, -1)


def token(i, vocab):
    return (i * 17 + 3) % vocab


def answer(job):
    """Logits of the last token, which is a step of its own. Of several sequences, each with other tokens, that is one step,
    and each gives an equal share of its logits."""
    model = Model(job)
    *prompt, last = job["tokens"]
    sequences = range(model.batch_size)
    for s in sequences:
        rows = [(t + s, i, s) for i, t in enumerate(prompt)]
        for at in range(0, len(rows), CHUNK):
            model.step(rows[at : at + CHUNK])
    model.step([(last + s, len(prompt), s) for s in sequences], last_only=False)
    shares = [model.logits(s)[s :: model.batch_size] for s in sequences]
    return {"logits": np.concatenate(shares).tolist()}


def speed(job):
    """Tokens per second, by repetition."""
    model = Model(job)
    depth, rates = job["depth"], []
    if depth:
        for s in range(model.batch_size):
            model.prefill(s, 0, depth)
    for repetition in range(-1, job["repetitions"]):
        start = time.perf_counter()
        if job["prompt"]:
            model.prefill(0, depth, job["prompt"])
        else:
            model.decode(depth, job["generate"])
        seconds = time.perf_counter() - start
        model.forget(depth)
        if repetition >= 0:
            rates.append(max(job["prompt"], job["generate"] * model.batch_size) / seconds)
    return {"samples": rates}


def opening(job):
    """Seconds from opening the file to the first token behind a prompt."""
    start = time.perf_counter()
    model = Model(job)
    model.step([(t, i, 0) for i, t in enumerate(job["tokens"])])
    model.logits(-1).argmax()
    return {"samples": [time.perf_counter() - start]}


def memory(job):
    """Most megabytes resident but for pages of files, copies of weights and what was held before."""
    before = resident("RssAnon:")
    model = Model(job)
    model.prefill(0, 0, job["prompt"])
    model.decode(job["prompt"], job["generate"])
    # Where the CPU has kernels for it, matrices in Q4_0 are repacked, into copies of the same size.
    weights = resident("RssFile:") + ll.llama_model_size(model.model)
    return {"samples": [(resident("VmHWM:") - before - weights) / 1e6]}


def main():
    job = json.loads(sys.argv[1])
    kinds = {"answer": answer, "speed": speed, "opening": opening, "memory": memory}
    print(json.dumps(kinds[job["kind"]](job)))


main()
