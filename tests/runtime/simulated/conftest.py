"""Every case starts on a simulated device of its own."""

from simulated_lists import device as device
