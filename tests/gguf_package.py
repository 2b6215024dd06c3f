"""What the gguf package reads of each GGUF in a folder, against the values beside it (FILE.f32: all tensors in order).

    PYTHONPATH=target/gguf-package python3 tests/gguf_package.py FOLDER
"""
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

files = sorted(Path(sys.argv[1]).glob("*.gguf"))
for path in files:
    reader = GGUFReader(path)
    read = [dequantize(t.data, t.tensor_type).astype(np.float32).reshape(-1) for t in reader.tensors]
    own = np.fromfile(path.with_suffix(".f32"), np.float32)
    theirs = np.concatenate(read)
    assert len(own) == len(theirs), f"{path.name}: {len(own)} values, the package reads {len(theirs)}"
    apart = np.abs(own - theirs).max()
    assert apart <= 1e-6, f"{path.name}: {apart} apart"
    keys = {k for k in reader.fields if not k.startswith("GGUF.")}
    missing = {"general.architecture", "general.file_type", "llama.block_count"} - keys
    assert not missing, f"{path.name} lacks {missing}"
print(f"{len(files)} files")
