"""Makes data/fruit.csv: fruit that does not exist, with text columns and missing values. Always the same file.

Run in this folder as `python3 fruit.py > fruit.csv`; needs nothing else.
"""

import random

# Mean weight (g), length (mm), width (mm) and sugar (%), with the deviation of each, and frequent origins.
KINDS = {
    "apple": ((180, 22), (70, 5), (75, 5), (11.5, 1.2), ("Chile", "France", "Italy")),
    "lemon": ((120, 18), (85, 7), (60, 4), (3.0, 0.7), ("Italy", "Spain", "Turkey")),
    "orange": ((190, 25), (74, 5), (74, 5), (9.5, 1.0), ("Spain", "Spain", "Turkey")),
    "pear": ((175, 25), (95, 9), (65, 5), (10.5, 1.3), ("Chile", "France", "Italy")),
}
ROWS = 400
MISSING = 0.04


def main():
    rng = random.Random(7)
    print("id,fruit,origin,weight_g,length_mm,width_mm,sugar_percent")
    for row in range(1, ROWS + 1):
        kind = rng.choice(sorted(KINDS))
        *sizes, origins = KINDS[kind]
        fields = [rng.choice(origins)] + [f"{rng.gauss(mean, deviation):.1f}" for mean, deviation in sizes]
        fields = ["" if rng.random() < MISSING else field for field in fields]
        print(row, kind, *fields, sep=",")


main()
