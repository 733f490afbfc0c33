//! Valid equations, profiles and golden files, damaged at every byte, and given to the fuzz targets' functions.

use highwater_tensor::fuzz;

/// Gives `target` the bytes cut at every place, and with each byte changed in some ways.
fn damaged(target: fn(&[u8]), bytes: &[u8], flips: &[u8]) {
    for at in 0..bytes.len() {
        target(&bytes[..at]);
        for flip in flips {
            let mut changed = bytes.to_vec();
            changed[at] ^= flip;
            target(&changed);
        }
    }
    target(bytes);
}

#[test]
fn an_equation_is_refused_or_means_its_sum() {
    for equation in ["ij,jk->ik", "bhid,bhjd->bhij", "ab,b,a", "ijk->ki", "i,j,k->", " i , i -> "] {
        for sizes in [[2, 1, 2, 1], [1, 2, 2, 0], [0, 1, 1, 1], [2, 2, 2, 2]] {
            damaged(fuzz::einsum, &[&sizes[..], equation.as_bytes()].concat(), &[1, 3, 0x20]);
        }
    }
}

#[test]
fn a_profile_is_refused_or_can_be_run_on() {
    for profile in [
        "t4",
        "cuda,memory=24GiB,limit=90%,compute=8.9",
        "a100-80g, limit=all-1GiB, threads=3",
        "cpu,memory=18446744073709551615,limit=10000%",
        "cpu,memory=1,limit=0",
        "cuda,memory=16777215TiB,compute=4294967295.4294967295,threads=65535",
    ] {
        damaged(fuzz::profile, profile.as_bytes(), &[1, 8, 0x10]);
    }
}

#[test]
fn golden_figures_of_any_text_can_be_compared() {
    let text = "# title\nop calls\nmatmul 1 2 3 4 5 6 7\nrelu 18446744073709551615 2 x\npool peak_in_use 1\n";
    damaged(fuzz::golden, text.as_bytes(), &[1, 2, 0x20, 0x2a]);
}
