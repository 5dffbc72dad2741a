"""The attacker of the hostile tests: `attacker SOCKET ATTACK ARGS`, a program of some user who has no right but to reach
the engine's socket. Each attack says on its standard output what it got, a line at a time, and then holds what it has
until its input ends. What it did to others is for the test to find out, on their side."""

import sys

import chaos
import flood
import hoard
import holes
import names
import stuck
import views
import wakes
import wire

ATTACKS = {
    attack.__name__.replace("_", "-"): attack
    for module in (stuck, names, hoard, holes, flood, views, wakes, wire, chaos)
    for attack in module.ATTACKS
}

if __name__ == "__main__":
    ATTACKS[sys.argv[2]](sys.argv[1], *sys.argv[3:])
