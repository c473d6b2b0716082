//! Sums, products, quotients and roots rounded in any direction.
//!
//! A processor rounds to nearest. What that leaves over can be computed exactly (by Knuth's and Dekker's error terms,
//! or because a product of two f32 is exact in f64), and its sign says on which side of the result the true value
//! lies. If that is the wrong side, the neighbour is the result.

use ptx::instr::Direction;

/// A result, given by the nearest number and the sign of what the true value has beyond it.
macro_rules! towards {
    ($name:ident, $ty:ty) => {
        fn $name(nearest: $ty, rest: f64, direction: Direction) -> $ty {
            if nearest.is_infinite() && rest.is_finite() && rest != 0.0 {
                // Too large to be finite, though the true value is.
                let stays = match direction {
                    Direction::Nearest => false,
                    Direction::Zero => true,
                    Direction::Down => nearest > 0.0,
                    Direction::Up => nearest < 0.0,
                };
                return if stays { <$ty>::MAX.copysign(nearest) } else { nearest };
            }
            match direction {
                Direction::Down if rest < 0.0 => nearest.next_down(),
                Direction::Up if rest > 0.0 => nearest.next_up(),
                Direction::Zero if nearest > 0.0 && rest < 0.0 => nearest.next_down(),
                Direction::Zero if nearest < 0.0 && rest > 0.0 => nearest.next_up(),
                _ => nearest,
            }
        }
    };
}

towards!(towards_single, f32);
towards!(towards_double, f64);

/// A sum and what it lacks.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let from_b = sum - a;
    (sum, (a - (sum - from_b)) + (b - from_b))
}

/// The f32 of a value that is given as a sum of two, of which the second is smaller than a unit in the last place of
/// the first.
fn single(high: f64, low: f64, direction: Direction) -> f32 {
    let nearest = high as f32;
    if nearest.is_infinite() && high.is_finite() {
        return towards_single(nearest, -high.signum(), direction);
    }
    let rest = high - f64::from(nearest);
    towards_single(nearest, if rest == 0.0 { low } else { rest }, direction)
}

/// Zero that comes of numbers which cancel is negative only downwards.
fn cancelled(direction: Direction) -> f64 {
    if direction == Direction::Down { -0.0 } else { 0.0 }
}

/// a + b.
pub(crate) fn add_single(a: f32, b: f32, direction: Direction) -> f32 {
    match direction {
        Direction::Nearest => a + b,
        _ if a == -b && a != 0.0 => cancelled(direction) as f32,
        _ => {
            let (high, low) = two_sum(a.into(), b.into());
            single(high, low, direction)
        }
    }
}

/// a·b.
pub(crate) fn multiply_single(a: f32, b: f32, direction: Direction) -> f32 {
    match direction {
        Direction::Nearest => a * b,
        _ => single(f64::from(a) * f64::from(b), 0.0, direction),
    }
}

/// a·b + c, rounded once.
pub(crate) fn fused_single(a: f32, b: f32, c: f32, direction: Direction) -> f32 {
    if direction == Direction::Nearest {
        return a.mul_add(b, c);
    }
    let product = f64::from(a) * f64::from(b);
    if product == -f64::from(c) && c != 0.0 {
        return cancelled(direction) as f32;
    }
    let (high, low) = two_sum(product, c.into());
    single(high, low, direction)
}

/// a / b.
pub(crate) fn divide_single(a: f32, b: f32, direction: Direction) -> f32 {
    let quotient = a / b;
    let rest = f64::from(a) - f64::from(quotient) * f64::from(b);
    towards_single(quotient, rest * f64::from(b.signum()), direction)
}

/// √a.
pub(crate) fn root_single(a: f32, direction: Direction) -> f32 {
    let root = a.sqrt();
    towards_single(root, f64::from(a) - f64::from(root) * f64::from(root), direction)
}

/// a + b.
pub(crate) fn add_double(a: f64, b: f64, direction: Direction) -> f64 {
    match direction {
        Direction::Nearest => a + b,
        _ if a == -b && a != 0.0 => cancelled(direction),
        _ => {
            let (sum, rest) = two_sum(a, b);
            let overflowed = sum.is_infinite() && a.is_finite() && b.is_finite();
            towards_double(sum, if overflowed { -sum.signum() } else { rest }, direction)
        }
    }
}

/// a·b.
pub(crate) fn multiply_double(a: f64, b: f64, direction: Direction) -> f64 {
    let product = a * b;
    let overflowed = product.is_infinite() && a.is_finite() && b.is_finite();
    towards_double(product, if overflowed { -product.signum() } else { a.mul_add(b, -product) }, direction)
}

/// a / b.
pub(crate) fn divide_double(a: f64, b: f64, direction: Direction) -> f64 {
    let quotient = a / b;
    towards_double(quotient, (-quotient).mul_add(b, a) * b.signum(), direction)
}

/// √a.
pub(crate) fn root_double(a: f64, direction: Direction) -> f64 {
    let root = a.sqrt();
    towards_double(root, (-root).mul_add(root, a), direction)
}

/// The f32 nearest to an f64, or next to it in a direction.
pub(crate) fn narrow(a: f64, direction: Direction) -> f32 {
    single(a, 0.0, direction)
}

/// An integer as f64, and as f32.
pub(crate) fn of_integer(a: i128, direction: Direction) -> (f32, f64) {
    let (short, long) = (a as f32, a as f64);
    // Both are whole numbers where they are not exact.
    let rest = |nearest: f64| (a - nearest as i128) as f64;
    (towards_single(short, rest(short.into()), direction), towards_double(long, rest(long), direction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_bracket_the_true_value() {
        let third = |direction| divide_single(1.0, 3.0, direction);
        assert_eq!(third(Direction::Up).to_bits(), third(Direction::Down).to_bits() + 1);
        assert_eq!(third(Direction::Zero), third(Direction::Down));
        assert_eq!(divide_single(-1.0, 3.0, Direction::Zero), -third(Direction::Down));
        // 1 + 2^-30 is no f32.
        let tiny = 2f32.powi(-30);
        assert_eq!(add_single(1.0, tiny, Direction::Up), 1f32.next_up());
        assert_eq!(add_single(1.0, -tiny, Direction::Zero), 1f32.next_down());
        assert_eq!(add_single(1.0, -1.0, Direction::Down).to_bits(), (-0.0f32).to_bits());
        assert_eq!(fused_single(tiny, 1.0, 1.0, Direction::Down), 1.0);
        assert_eq!(multiply_single(f32::MAX, 2.0, Direction::Zero), f32::MAX);
        assert_eq!(multiply_single(f32::MAX, 2.0, Direction::Up), f32::INFINITY);
        assert_eq!(add_double(1.0, 1e-30, Direction::Up), 1f64.next_up());
        assert_eq!(multiply_double(0.1, 0.1, Direction::Up), multiply_double(0.1, 0.1, Direction::Down).next_up());
        assert_eq!(root_single(2.0, Direction::Up), root_single(2.0, Direction::Down).next_up());
        assert_eq!(of_integer((1 << 24) + 1, Direction::Up).0, 16_777_218.0);
        assert_eq!(narrow(1.0 + 1e-12, Direction::Up), 1f32.next_up());
    }
}
