"""Data-parallel replicas: R copies with micro-batches of their own give the weights that R times the accumulation gives, to the bit.

    python examples/replicated.py
    python examples/replicated.py --replicas 8 --epochs 5
    python examples/replicated.py --own-buffers              # each replica has running statistics of its own
    python examples/replicated.py --ensemble                 # as many separate networks, trained in one program
"""
from __future__ import annotations

import argparse

import numpy as np
from images import digits

import tileflow
from tileflow import nn


def network() -> nn.Module:
    nn.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1),
                         nn.Linear(256, 10))


def trained(options: tileflow.Options, epochs: int) -> nn.Module:
    net, (train, test) = network(), digits()
    model = tileflow.training_model(net, options)
    loader = tileflow.DataLoader(options, train)
    for epoch in range(epochs):
        for batch in loader:
            _, loss = model(*batch)
        print(f"  epoch {epoch + 1}: loss of each replica's last micro-batch {np.round(np.atleast_1d(loss), 3)}")
    scores = tileflow.inference_model(net)(test[0])
    print(f"  accuracy {(scores.argmax(1) == test[1]).mean():.1%}")
    return net


def ensemble(options: tileflow.Options, epochs: int) -> None:
    """Each replica has weights of its own, and sees rows of its own: separate trainings. Together they judge by the mean of their scores."""
    (train, (x, labels)), net = digits(), network()
    own = {"replica_grouping": {"*": "no_grouping"}}
    model = tileflow.training_model(net, options, broadcast_buffers=False, accumulation_reduction="sum", **own)
    loader = tileflow.DataLoader(options, train)
    for _ in range(epochs):
        for batch in loader:
            model(*batch)
    members = options.replication_factor
    for replica in range(members):
        alone = network()
        alone.load_state_dict(model.state_dict(replica))
        print(f"  replica {replica}: accuracy {(tileflow.inference_model(alone)(x).argmax(1) == labels).mean():.1%}")
    judge = tileflow.inference_model(net, replication_factor=members, input_group_size=members, **own)          # all of them get the same rows
    print(f"  together: accuracy {(judge(x).reshape(members, len(x), -1).mean(0).argmax(1) == labels).mean():.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Training with data-parallel replicas")
    parser.add_argument("--replicas", type=int, default=4, help="copies of the model (4)")
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches of a replica per weight update (2)")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the training data (3)")
    parser.add_argument("--own-buffers", action="store_true", help="each replica has running statistics of its own; those of the first are saved")
    parser.add_argument("--ensemble", action="store_true", help="each replica has weights of its own")
    args = parser.parse_args()

    alone = tileflow.Options(micro_batch_size=8, gradient_accumulation=args.accumulation * args.replicas, learning_rate=3e-3)
    replicated = alone.clone(gradient_accumulation=args.accumulation, replication_factor=args.replicas, broadcast_buffers=not args.own_buffers)
    if args.ensemble:
        return ensemble(replicated, args.epochs)
    print(f"{args.replicas} replicas, {args.accumulation} micro-batches each:")
    several = trained(replicated, args.epochs).state_dict()
    print(f"One, {args.accumulation * args.replicas} micro-batches:")
    one = trained(alone, args.epochs).state_dict()

    other = [name for name in one if not np.array_equal(one[name], several[name])]
    print(f"Weights and buffers that are not the same to the bit: {', '.join(other) or 'none'}")


if __name__ == "__main__":
    main()
