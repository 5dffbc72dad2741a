"""What an attack says, and how it waits for its end."""

import resource
import sys


def say(*words):
    print(*words, flush=True)


def hold():
    """Until the input ends."""
    sys.stdin.read()


def descriptors():
    """As many as one may have."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
