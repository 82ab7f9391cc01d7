"""For all tests: tiny models run fastest on one thread, and results do not depend on how many there are."""

import torch

torch.set_num_threads(1)
