//! Placement against CuPy's own pool: what version 14.2.0 did with a program of 40,000 calls.
//!
//! CuPy's pool ran without a card, over an allocator that numbers its segments. It orders free chunks of one size by the
//! host addresses of their records, so those were made to ascend and to be used again last one first, as here.

use allocator_core::{
    AllocError, Answer, Call, Configure, Control, Device, LogDevice, Request, SimDevice, Strategy, StreamId,
};
use std::collections::BTreeMap;
use strategy_cupy::{Cupy, Params};

/// The generator, which the program for CuPy had too.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What was done, as one number (FNV-1a), and how much of it.
#[derive(PartialEq, Eq, Debug)]
struct Done {
    hash: u64,
    refused: u32,
    segments: u64,
    returned: u32,
    reserved: u64,
    peak: u64,
}

impl Done {
    fn put(&mut self, number: u64) {
        self.hash = (self.hash ^ number).wrapping_mul(0x100_0000_01b3);
    }
}

#[test]
fn every_placement_refusal_and_return_is_that_of_cupy_14_2() {
    let mut dev = LogDevice::new(SimDevice::new(1 << 40));
    let mut cupy = Cupy::new(Params::default(), &dev.info()).unwrap();
    let mut random = Random(1);
    let mut done = Done { hash: 0xcbf2_9ce4_8422_2325, refused: 0, segments: 0, returned: 0, reserved: 0, peak: 0 };
    // Ordinals and sizes of the segments that are held, by address.
    let mut held = BTreeMap::new();
    // A request that was refused has a place there too, whose free does nothing.
    let mut live = Vec::new();
    let (mut requests, mut hashes, mut seen) = (0, Vec::new(), 0);
    for step in 0..40_000 {
        let mut answer = None;
        if step % 1000 == 999 {
            cupy.trim(&mut dev, 0).unwrap();
        } else if step % 500 == 250 {
            let limit = [0, 24, 40, 56][random.below(4) as usize] << 20;
            cupy.control(&mut dev, Control::Limit((limit > 0).then_some(limit))).unwrap();
        } else if random.below(400) >= live.len() as u64 {
            let small = (1 + random.below(12)) * 1000;
            let size = if random.below(4) > 0 { small } else { small * (1 + random.below(200)) };
            answer = Some(cupy.allocate(&mut dev, Request::new(size, StreamId(random.below(3) as u32))));
        } else if let Some(block) = live.swap_remove(random.below(live.len() as u64) as usize) {
            cupy.free(&mut dev, block).unwrap();
        }

        let mut returned = Vec::new();
        for step in &dev.steps()[seen..] {
            match (&step.call, &step.answer) {
                (Call::Malloc { size }, Ok(Answer::Address(ptr))) => {
                    held.insert(*ptr, (done.segments, *size));
                    done.segments += 1;
                    done.reserved += size;
                }
                (Call::Free { ptr }, Ok(_)) => {
                    let (ordinal, size) = held.remove(ptr).unwrap();
                    returned.push(ordinal);
                    done.reserved -= size;
                }
                other => panic!("{other:?}"),
            }
        }
        seen = dev.steps().len();
        done.peak = done.peak.max(done.reserved);

        if let Some(answer) = answer {
            requests += 1;
            if requests % 4000 == 0 {
                hashes.push(done.hash);
            }
            match &answer {
                Ok(block) => {
                    let (segment, (ordinal, _)) = held.range(..=block.ptr()).next_back().unwrap();
                    done.put(*ordinal);
                    done.put(block.ptr() - segment);
                }
                Err(error) => {
                    assert_eq!(*error, AllocError::OutOfMemory);
                    done.put(u64::MAX);
                    done.refused += 1;
                }
            }
            live.push(answer.ok());
        }
        for ordinal in returned {
            done.put(ordinal);
            done.returned += 1;
        }
    }
    let of_cupy = [
        0x671b_f22d_0ccb_2efd,
        0xa3d0_3f2a_a17b_1adc,
        0x39e4_6960_4190_df5f,
        0x9a23_6291_71ec_8a0b,
        0xa9fe_a753_aed4_d656,
    ];
    assert_eq!(hashes, of_cupy, "after each 4,000 requests");
    let of_cupy = Done {
        hash: 0xe66e_89cb_badc_496f,
        refused: 350,
        segments: 481,
        returned: 453,
        reserved: 40_073_728,
        peak: 64_477_696,
    };
    assert_eq!((requests, done), (20_040, of_cupy));
}
