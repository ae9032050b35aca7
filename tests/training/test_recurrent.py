"""Recurrent layers in training: one graph, and eager's gradients."""

import copy

import pytest
import torch
from step_twin import assert_one_graph, batches, run
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from training_twin import assert_same

import torchweld

# the step that makes the optimizer's state is looked at, too
pytestmark = pytest.mark.usefixtures("at_once")


def make_step(model, read=lambda model, x: model(x)[0]):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        loss = read(model, x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


KINDS = {
    "lstm": lambda: nn.LSTM(6, 8),
    "lstm in two directions": lambda: nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True),
    "lstm without biases": lambda: nn.LSTM(6, 8, bias=False),
    "lstm with dropout": lambda: nn.LSTM(6, 8, 2, dropout=0.3),
    "lstm with projections": lambda: nn.LSTM(6, 8, proj_size=3),
    "gru": lambda: nn.GRU(6, 8, 2, bidirectional=True),
    "rnn": lambda: nn.RNN(6, 8),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_a_recurrent_layer_is_one_graph(kind):
    def make():
        torch.manual_seed(3)
        return KINDS[kind]()

    run(make_step, batches(3, 4, 3, 6), make, rtol=1e-3, atol=1e-5)
    assert_one_graph(2)


@pytest.mark.parametrize("bias", [True, False])
def test_a_step_of_an_lstm_of_bf16_is_one_graph(bias):
    def make():
        torch.manual_seed(3)
        return nn.LSTM(6, 8, 2, batch_first=True, bias=bias, dtype=torch.bfloat16)

    inputs = [x.bfloat16() for x in batches(3, 4, 3, 6)]
    run(make_step, inputs, make, rtol=0.05, atol=0.02)
    assert_one_graph(2)


def test_forward_and_backward_of_an_lstm_apart():
    torch.manual_seed(3)
    mine = nn.LSTM(6, 8)
    theirs = copy.deepcopy(mine)
    fast = torchweld.compile(lambda x, h, c: mine(x, (h, c)))
    for x in batches(2, 4, 3, 6):
        rows = []
        for fn, model in ((fast, mine), (lambda x, h, c: theirs(x, (h, c)), theirs)):
            own, h = x.clone().requires_grad_(), torch.ones(1, 3, 8, requires_grad=True)
            out, (hidden, cell) = fn(own, h, h)
            (out.square().sum() + hidden.sum() + cell.square().sum()).backward()
            grads = [p.grad for p in model.parameters()]
            rows.append([out, hidden, cell, own.grad, h.grad, *grads])
        assert_same(*rows)


def test_a_packed_sequence_gives_eagers_gradients():
    def read(model, x):
        packed = pack_padded_sequence(x, torch.tensor([4, 2, 1]))
        return pad_packed_sequence(model(packed)[0])[0]

    def make():
        torch.manual_seed(3)
        return nn.LSTM(6, 8, 2)

    run(lambda model: make_step(model, read), batches(3, 4, 3, 6), make, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["gru", "lstm", "lstm without biases"])
def test_a_recurrent_layer_under_autocast_of_the_frame(kind):
    def read(model, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)[0].float()

    def make():
        torch.manual_seed(3)
        return KINDS[kind]()

    run(lambda model: make_step(model, read), batches(2, 4, 3, 6), make, rtol=0.05, atol=0.02)
    assert_one_graph(2)
