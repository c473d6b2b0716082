//! Matrices that the lanes of a warp hold in parts: `wmma`, which also brings them from memory and back, and the shapes
//! of `mma.sync` that [`Mma`](super::Mma) has no form for.
//!
//! The ISA says of `mma.sync` which lane holds which element, and leaves it open of `wmma` (9.7.14.4.1): what a kernel
//! may rely on is that fragments of the same shape, type and layout are alike. Here a lane of `wmma` holds neighbours:
//! those of A and B in the order that their layout gives them in memory, and those of accumulators row by row.

use super::wgmma::MatrixElement;
use crate::types::{Address, Bank, Operand, RegId, Space};

/// What the elements of a matrix are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixType {
    /// What tensor cores multiply. Sums may be `F16` too.
    Of(MatrixElement),
    /// Sums in single precision.
    F32,
    /// Factors and sums in double precision.
    F64,
    /// Sums of integers.
    S32,
}

impl MatrixType {
    /// Every one.
    pub const ALL: [MatrixType; 10] = {
        let [a, b, c, d, e, f, g] = MatrixElement::ALL;
        use MatrixType::Of;
        [Of(a), Of(b), Of(c), Of(d), Of(e), Of(f), Of(g), MatrixType::F32, MatrixType::F64, MatrixType::S32]
    };

    /// Bits of an element.
    pub fn bits(self) -> u32 {
        match self {
            MatrixType::Of(element) => element.bits(),
            MatrixType::F32 | MatrixType::S32 => 32,
            MatrixType::F64 => 64,
        }
    }

    /// The bank of registers that hold elements.
    pub fn bank(self) -> Bank {
        if self == MatrixType::F64 { Bank::B64 } else { Bank::B32 }
    }

    /// Elements in one register.
    pub fn packed(self) -> usize {
        (self.bank().bits() / self.bits()) as usize
    }
}

/// Which of the three matrices of a multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The first factor, m × k.
    A,
    /// The second factor, k × n.
    B,
    /// Sums, before or after: m × n.
    Sums,
}

/// How the elements of a matrix follow each other in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixOrder {
    /// Row by row.
    Rows,
    /// Column by column.
    Columns,
}

/// The part of a matrix that each lane of a warp holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Which matrix.
    pub role: Role,
    /// m, n and k of the multiplication.
    pub shape: [u32; 3],
    /// Its elements.
    pub ty: MatrixType,
    /// How `wmma` has the matrix in memory; nothing for `mma.sync`.
    pub order: Option<MatrixOrder>,
}

impl Fragment {
    /// Rows and columns of the matrix.
    pub fn sides(self) -> [usize; 2] {
        let [m, n, k] = self.shape.map(|side| side as usize);
        match self.role {
            Role::A => [m, k],
            Role::B => [k, n],
            Role::Sums => [m, n],
        }
    }

    /// Registers per lane. `wmma` has eight for factors of f16, whatever their shape, and so holds elements more than
    /// once.
    pub fn registers(self) -> usize {
        let half = MatrixType::Of(MatrixElement::F16);
        match (self.order, self.role) {
            (Some(_), Role::A | Role::B) if self.ty == half => 8,
            _ => {
                let [rows, columns] = self.sides();
                rows * columns / (32 * self.ty.packed()).max(1)
            }
        }
    }

    /// Elements per lane.
    pub fn elements(self) -> usize {
        self.registers() * self.ty.packed()
    }

    /// Row and column of one of a lane's elements, in the order of registers.
    pub fn place(self, lane: usize, element: usize) -> (usize, usize) {
        let [rows, columns] = self.sides();
        let (group, quarter, packed) = (lane / 4, lane % 4, self.ty.packed());
        let Some(order) = self.order else {
            // With eight rows to a register where there are sixteen.
            let (register, along) = (element / packed, packed * quarter + element % packed);
            return match self.role {
                Role::A => (group + 8 * (register % (rows / 8)), along + 4 * packed * (register / (rows / 8))),
                Role::B => (along + 4 * packed * register, group),
                Role::Sums => (group + 8 * (element / 2), 2 * quarter + element % 2),
            };
        };
        let at = (lane * self.elements() + element) % (rows * columns);
        match (self.role, order) {
            (Role::A | Role::B, MatrixOrder::Columns) => (at % rows, at / rows),
            _ => (at / columns, at % columns),
        }
    }
}

/// What a warp does with fragments; all of its lanes execute it together.
#[derive(Clone, Debug, PartialEq)]
pub enum Fragments {
    /// A matrix from memory (`wmma.load`).
    Load {
        /// The matrix.
        fragment: Fragment,
        /// Window of the address.
        space: Space,
        /// Registers of a lane.
        dsts: Vec<RegId>,
        /// Its first element.
        addr: Address,
        /// Elements from one row, or column, to the next; those of one if there is none.
        stride: Option<Operand>,
    },
    /// Sums to memory (`wmma.store`).
    Store {
        /// The matrix.
        fragment: Fragment,
        /// Window of the address.
        space: Space,
        /// Registers of a lane.
        srcs: Vec<RegId>,
        /// Its first element.
        addr: Address,
        /// As of a load.
        stride: Option<Operand>,
    },
    /// D = A·B + C (`wmma.mma`, or `mma.sync`).
    Multiply {
        /// Whether sums of integers stop at the ends of their range.
        saturate: bool,
        /// D.
        d: (Fragment, Vec<RegId>),
        /// A.
        a: (Fragment, Vec<RegId>),
        /// B.
        b: (Fragment, Vec<RegId>),
        /// C.
        c: (Fragment, Vec<RegId>),
    },
}

/// Multiplications that PTX has: shapes, what may be multiplied, and in what it may be added up.
type Forms = (&'static [[u32; 3]], &'static [MatrixType], &'static [MatrixType]);

const F16: MatrixType = MatrixType::Of(MatrixElement::F16);
const BF16: MatrixType = MatrixType::Of(MatrixElement::Bf16);
const TF32: MatrixType = MatrixType::Of(MatrixElement::Tf32);
const BYTES: &[MatrixType] = &[MatrixType::Of(MatrixElement::S8), MatrixType::Of(MatrixElement::U8)];
const EIGHT_BITS: &[MatrixType] = &[MatrixType::Of(MatrixElement::E4m3), MatrixType::Of(MatrixElement::E5m2)];

/// Those of `wmma`.
const PORTABLE: [Forms; 5] = {
    const SHAPES: &[[u32; 3]] = &[[16, 16, 16], [32, 8, 16], [8, 32, 16]];
    [
        (SHAPES, &[F16], &[F16, MatrixType::F32]),
        (SHAPES, &[BF16], &[MatrixType::F32]),
        (SHAPES, BYTES, &[MatrixType::S32]),
        (&[[16, 16, 8]], &[TF32], &[MatrixType::F32]),
        (&[[8, 8, 4]], &[MatrixType::F64], &[MatrixType::F64]),
    ]
};

/// Those of `mma.sync`, whose factors may differ where there are two, and whose sums may not.
const FIXED: [Forms; 6] = [
    (&[[16, 8, 8], [16, 8, 16]], &[F16], &[F16, MatrixType::F32]),
    (&[[16, 8, 8], [16, 8, 16]], &[BF16], &[MatrixType::F32]),
    (&[[16, 8, 4], [16, 8, 8]], &[TF32], &[MatrixType::F32]),
    (&[[8, 8, 16], [16, 8, 16], [16, 8, 32]], BYTES, &[MatrixType::S32]),
    (&[[8, 8, 4], [16, 8, 4], [16, 8, 8], [16, 8, 16]], &[MatrixType::F64], &[MatrixType::F64]),
    (&[[16, 8, 32]], EIGHT_BITS, &[F16, MatrixType::F32]),
];

impl Fragment {
    /// Whether PTX has it.
    pub fn exists(self) -> bool {
        let forms: &[Forms] = if self.order.is_some() { &PORTABLE } else { &FIXED };
        forms.iter().any(|(shapes, factors, sums)| {
            shapes.contains(&self.shape) && if self.role == Role::Sums { sums } else { factors }.contains(&self.ty)
        })
    }
}

/// The element of an `mma.sync` that is a [`Mma::Dense`](super::Mma::Dense), by its shape and the types of D, A, B, C.
pub(crate) fn dense(shape: [u32; 3], [d, a, b, c]: [MatrixType; 4]) -> Option<MatrixElement> {
    let MatrixType::Of(element) = a else { return None };
    let sums = if element.is_integer() { MatrixType::S32 } else { MatrixType::F32 };
    ([d, b, c] == [sums, a, sums] && shape == [16, 8, element.depth()]).then_some(element)
}

impl Fragments {
    /// Whether PTX has a multiplication of such matrices, and no other value says it.
    pub fn multiplies(d: Fragment, a: Fragment, b: Fragment, c: Fragment) -> bool {
        let portable = [d, a, b, c].iter().all(|fragment| fragment.order.is_some());
        let forms: &[Forms] = if portable { &PORTABLE } else { &FIXED };
        let alike = match portable {
            true => a.ty == b.ty,
            false => c.ty == d.ty && dense(d.shape, [d, a, b, c].map(|fragment| fragment.ty)).is_none(),
        };
        alike
            && forms.iter().any(|(shapes, factors, sums)| {
                [d, a, b, c].iter().all(|fragment| shapes.contains(&fragment.shape) && fragment.shape == d.shape)
                    && [a, b].iter().all(|fragment| factors.contains(&fragment.ty))
                    && [c, d].iter().all(|fragment| sums.contains(&fragment.ty))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every fragment that PTX has.
    fn all() -> Vec<Fragment> {
        let forms = [(&PORTABLE[..], true), (&FIXED[..], false)];
        let mut all = Vec::new();
        for (forms, portable) in forms {
            for (shapes, factors, sums) in forms {
                for shape in *shapes {
                    let roles = [(Role::A, factors), (Role::B, factors), (Role::Sums, sums)];
                    for (role, types) in roles {
                        for ty in *types {
                            let orders: &[_] = match portable {
                                true => &[Some(MatrixOrder::Rows), Some(MatrixOrder::Columns)],
                                false => &[None],
                            };
                            let fragment = |order: &_| Fragment { role, shape: *shape, ty: *ty, order: *order };
                            all.extend(orders.iter().map(fragment));
                        }
                    }
                }
            }
        }
        all
    }

    #[test]
    fn the_lanes_of_a_warp_hold_every_element_and_each_as_often() {
        for fragment in all() {
            let [rows, columns] = fragment.sides();
            let mut held = vec![0; rows * columns];
            for lane in 0..32 {
                for element in 0..fragment.elements() {
                    let (row, column) = fragment.place(lane, element);
                    assert!(row < rows && column < columns, "{fragment:?}");
                    held[row * columns + column] += 1;
                }
            }
            let copies = 32 * fragment.elements() / (rows * columns);
            assert!(copies > 0 && held.iter().all(|times| *times == copies), "{fragment:?}");
            assert!(fragment.exists());
        }
    }

    #[test]
    fn registers_are_as_many_as_the_isa_has() {
        // ISA 9.7.14.4.1, by shape, type and role.
        let count = |shape, ty, role| Fragment { role, shape, ty, order: Some(MatrixOrder::Rows) }.registers();
        let byte = MatrixType::Of(MatrixElement::S8);
        for (shape, of_bytes, of_bf16) in
            [([16, 16, 16], [2, 2], [4, 4]), ([8, 32, 16], [1, 4], [2, 8]), ([32, 8, 16], [4, 1], [8, 2])]
        {
            assert_eq!([Role::A, Role::B].map(|role| count(shape, byte, role)), of_bytes);
            assert_eq!([Role::A, Role::B].map(|role| count(shape, BF16, role)), of_bf16);
            assert_eq!([Role::A, Role::B].map(|role| count(shape, F16, role)), [8, 8]);
            assert_eq!([F16, MatrixType::F32, MatrixType::S32].map(|ty| count(shape, ty, Role::Sums)), [4, 8, 8]);
        }
        assert_eq!([Role::A, Role::B].map(|role| count([16, 16, 8], TF32, role)), [4, 4]);
        let double = |role| count([8, 8, 4], MatrixType::F64, role);
        assert_eq!([Role::A, Role::B, Role::Sums].map(double), [1, 1, 2]);
    }
}
