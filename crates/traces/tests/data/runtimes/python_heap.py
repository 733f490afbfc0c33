"""A program for memray: a table, and buffers of growing size."""


def make_table(rows):
    return bytearray(rows * 1000)


def make_buffer(size):
    return bytearray(size)


def work(rounds):
    for step in range(rounds):
        buffer = make_buffer(10000 * (step + 1))
        scratch = make_buffer(50000)
        del buffer, scratch


def main():
    table = make_table(1000)
    work(20)
    second = make_table(500)
    del table
    return second


main()
