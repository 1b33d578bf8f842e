//! The 60 programs that PyTorch 2.11's own library ran on a stub CUDA runtime: every event, address and statistic.

#[allow(dead_code, reason = "each test uses a part of it")]
mod common;

use allocator_core::AllocError;
use common::{Event, Runner, STATS};
use serde_json::Value;

const FILE: &[u8] = include_bytes!("pytorch-2.11-golden.jsonl.zst");

fn event(value: &Value) -> Event {
    Event {
        action: value[0].as_str().unwrap().to_owned(),
        addr: value[1].as_str().map_or_else(|| value[1].to_string(), str::to_owned),
        size: value[2].as_u64().unwrap(),
        stream: value[3].as_u64().unwrap(),
        pool: (value[4][0].as_u64().unwrap(), value[4][1].as_u64().unwrap()),
    }
}

#[test]
fn all_scenarios_agree_with_pytorch() {
    let text = String::from_utf8(zstd::decode_all(FILE).unwrap()).unwrap();
    let scenarios: Vec<Value> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(scenarios.len(), 60);
    let mut checked = 0;
    for scenario in &scenarios {
        let steps = scenario["steps"].as_array().unwrap();
        let streams = steps.iter().flat_map(|step| {
            let cmd = &step["cmd"];
            let at = match cmd[0].as_str() {
                Some("a") => 3,
                Some("r") => 2,
                _ => return None,
            };
            u64::from_str_radix(cmd[at].as_str()?, 16).ok()
        });
        let mut runner = Runner::new(scenario["device_total"].as_u64().unwrap(), streams.collect());
        for (number, step) in steps.iter().enumerate() {
            let cmd: Vec<&str> = step["cmd"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
            let at = format!("{}, step {number}: {}", scenario["id"], cmd.join(" "));
            let (events, result) = runner.run(&cmd);
            let want: Vec<Event> = step["events"].as_array().unwrap().iter().map(event).collect();
            assert_eq!(events, want, "{at}");
            checked += want.len();
            if let Some(addr) = step.get("result") {
                assert_eq!(result, Some(Ok(addr.as_str().unwrap().to_owned())), "{at}");
            }
            if step.get("error").is_some() {
                assert_eq!(result, Some(Err(AllocError::OutOfMemory)), "{at}");
            }
            if let Some(stats) = step.get("stats") {
                let have = runner.stats();
                for (short, key) in STATS {
                    assert_eq!(have[key], stats[short].as_i64().unwrap(), "{at}: {key}");
                }
            }
        }
    }
    assert_eq!(checked, 15_058, "the file holds as many events");
}
