//! Sizes of problems: as they are written on the command line, as numbers in reports, and the bytes of their weights.

use std::num::IntErrorKind;
use std::str::FromStr;

use hammerhead::{Activation, Gate, Output, Problem, Shape};

/// How the option that takes [`Shapes`] is shown.
pub const SYNTAX: &str = "M[,M…]xNxK";

/// The groups of one problem, written as `256x4096x7168`, or as `80,176,128x4096x7168` where there are several.
#[derive(Clone, Debug, PartialEq)]
pub struct Shapes(pub Vec<Shape>);

impl FromStr for Shapes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        read(text).map_err(|wrong| {
            format!(
                "{wrong}; write tokens x columns x K, as in 256x4096x7168, or 80,176,128x4096x7168 for three groups of tokens"
            )
        })
    }
}

fn read(text: &str) -> Result<Shapes, String> {
    let sizes: Vec<&str> = text.split(['x', 'X', '×']).collect();
    let [tokens, n, k] = sizes[..] else {
        return Err(format!("three sizes are expected, and there are {}", sizes.len()));
    };
    let (n, k) = (number("number of columns", n)?, number("K", k)?);
    // Problems of several groups are printed with brackets, and what is printed can be pasted.
    let tokens = tokens.strip_prefix('[').and_then(|tokens| tokens.strip_suffix(']')).unwrap_or(tokens);
    let groups = tokens.split(',').map(|m| Ok(Shape::new(number("number of tokens", m)?, n, k)));
    let groups = groups.collect::<Result<Vec<Shape>, String>>()?;
    // Gate and types do not decide whether sizes are legal.
    match Problem::new(groups.clone(), Gate::Silu, Activation::NvFp4, Output::F16) {
        Ok(_) => Ok(Shapes(groups)),
        Err(error) => Err(error.to_string()),
    }
}

fn number(what: &str, text: &str) -> Result<usize, String> {
    text.trim().parse().map_err(|error: std::num::ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => format!("the {what} {text:?} is larger than any that can be computed"),
        _ => format!("the {what} {text:?} is not a whole number"),
    })
}

/// The sizes of every group as numbers.
pub fn numbers(problem: &Problem) -> Vec<[usize; 3]> {
    problem.groups().iter().map(|s| [s.m, s.n, s.k]).collect()
}

/// Bytes of the weights of those groups that are counted.
pub fn weight_bytes(problem: &Problem, counted: impl Fn(&Shape) -> bool) -> f64 {
    let bytes = |s: &Shape| problem.matrices() as f64 * s.n as f64 * (s.k / 2 + s.k / 16) as f64;
    // The sum of no floats is a negative zero.
    problem.groups().iter().filter(|s| counted(s)).map(bytes).fold(0.0, |sum, bytes| sum + bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(groups: &[(usize, usize, usize)]) -> Result<Shapes, String> {
        Ok(Shapes(groups.iter().map(|&(m, n, k)| Shape::new(m, n, k)).collect()))
    }

    #[test]
    fn a_shape_is_three_sizes_and_groups_are_several_numbers_of_tokens() {
        for text in ["1x2x48", "1×2×48", "1X2X48", " 1 x 2 x 48 "] {
            assert_eq!(text.parse(), shapes(&[(1, 2, 48)]), "{text:?}");
        }
        assert_eq!("80,0,128x40x64".parse(), shapes(&[(80, 40, 64), (0, 40, 64), (128, 40, 64)]));
    }

    #[test]
    fn what_a_table_prints_can_be_given_back() {
        let problem = |shapes: &Shapes| Problem::new(shapes.0.clone(), Gate::Silu, Activation::F16, Output::F16);
        for text in ["1x2x48", "80,176x40x64"] {
            let read: Shapes = text.parse().unwrap();
            assert_eq!(problem(&read).unwrap().to_string().parse(), Ok(read));
        }
    }

    #[test]
    fn groups_that_are_not_counted_have_no_bytes() {
        let groups = vec![Shape::new(0, 4, 32), Shape::new(1, 4, 32)];
        let problem = Problem::new(groups, Gate::Silu, Activation::F16, Output::F16).unwrap();
        assert_eq!(weight_bytes(&problem, |s| s.m > 0), 2.0 * 4.0 * 18.0);
        assert!(weight_bytes(&problem, |_| false).is_sign_positive(), "nobody wants to read -0.00");
    }

    #[test]
    fn what_is_wrong_with_a_shape_is_named_and_a_right_one_shown() {
        for (text, wrong) in [
            ("", "there are 1"),
            ("1x2", "there are 2"),
            ("1x2x3x4", "there are 4"),
            ("axbx16", "the number of columns \"b\" is not a whole number"),
            ("ax2x16", "the number of tokens \"a\" is not a whole number"),
            ("1,,2x2x16", "the number of tokens \"\" is not a whole number"),
            ("-1x2x16", "the number of tokens \"-1\""),
            ("1x2x1.5", "the K \"1.5\""),
            ("1x2x24", "k = 24; k must be a positive multiple of 16"),
            ("1x2x0", "k = 0"),
            ("1x0x16", "no columns"),
            ("1x99999999999999999999x16", "larger than any"),
            ("18446744073709551615x1x16", "beyond what memory can address"),
            ("1,1x1099511627776x524288", "beyond what memory can address"),
        ] {
            let error = text.parse::<Shapes>().unwrap_err();
            assert!(error.contains(wrong) && error.contains("256x4096x7168"), "{text:?}: {error}");
        }
    }
}
