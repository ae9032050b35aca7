"""What is collected depends on what this version of torch has."""

import importlib.util

collect_ignore = [
    *([] if importlib.util.find_spec("torch.fx.experimental.dynamic_spec")
      else ["test_shape_specs_of_torch.py"]),
]  # fmt: skip
