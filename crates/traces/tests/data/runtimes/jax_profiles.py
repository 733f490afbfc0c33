"""Writes two device memory profiles of one program. Needs jax."""

import jax
import jax.numpy as jnp


def make_weights(rows):
    return [jnp.ones((rows, 256), jnp.float32) for _ in range(3)]


def make_activations(weights):
    return [weight * 2 for weight in weights]


def main():
    weights = make_weights(512)
    jax.block_until_ready(weights)
    jax.profiler.save_device_memory_profile("jax-before.prof")
    activations = make_activations(weights)
    extra = jnp.zeros((1000,), jnp.float32)
    jax.block_until_ready((activations, extra))
    jax.profiler.save_device_memory_profile("jax-after.prof")
    print("before", sum(array.nbytes for array in weights))
    print("after", sum(array.nbytes for array in [*weights, *activations, extra]))


main()
