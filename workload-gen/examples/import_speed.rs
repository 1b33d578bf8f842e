//! Times the import of a snapshot: `import_speed FILE [REPEATS]` reads and converts it so many times and prints a line of
//! nanoseconds (of the clock, and of the processor) and entries each, then the peak of the process's memory; `import_speed --hash FILE` prints a hash of all
//! entries, to be compared with another reader's. `scripts/import-speed` runs it beside Python.

use std::process::ExitCode;
use std::time::Instant;
use workload_gen::import::{ImportOptions, choose_device, import};
use workload_gen::snapshot::Snapshot;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--hash", file] => hash(file),
        [file] => speed(file, 1),
        [file, repeats] if repeats.parse::<u32>().is_ok() => speed(file, repeats.parse().unwrap_or(1)),
        _ => {
            eprintln!("usage: import_speed FILE [REPEATS] | import_speed --hash FILE");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(6)
        }
    }
}

fn speed(file: &str, repeats: u32) -> Result<(), Box<dyn std::error::Error>> {
    for _ in 0..repeats {
        let (start, cpu) = (Instant::now(), cpu_ns()?);
        let snapshot = Snapshot::open(file)?;
        let device = choose_device(&snapshot, None)?;
        let entries = snapshot.devices[device as usize].len();
        let trace = import(snapshot, &ImportOptions::default())?;
        let (ns, cpu) = (start.elapsed().as_nanos(), cpu_ns()? - cpu);
        println!("ns {ns} cpu {cpu} entries {entries} events {}", trace.events.len());
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("unknown");
    println!("peak {}", peak.trim());
    Ok(())
}

/// Nanoseconds that this program has had a processor: on a busy machine the clock says little.
fn cpu_ns() -> Result<u64, Box<dyn std::error::Error>> {
    let schedule = std::fs::read_to_string("/proc/self/schedstat")?;
    Ok(schedule.split_whitespace().next().unwrap_or_default().parse()?)
}

fn hash(file: &str) -> Result<(), Box<dyn std::error::Error>> {
    let snapshot = Snapshot::open(file)?;
    let mut hash = 0u64;
    for entry in snapshot.devices.iter().flatten() {
        let action = entry.action as u64;
        for value in [action, entry.addr, entry.size, snapshot.stream(entry), entry.time_us] {
            hash = hash.wrapping_mul(0x0000_0100_0000_01b3).wrapping_add(value);
        }
    }
    println!("{hash:016x}");
    Ok(())
}
