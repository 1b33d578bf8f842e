//! The strategies, in one explicit list, and how one is made from its name and `key=value` parameters.
//!
//! A list that a person can read beats registration by linker tricks: a crate that nothing names is dropped silently.
//! Tests below check that every folder under `strategies/` is listed.

use crate::exit::Error;
use crate::job::DEFAULT_CAPACITY;
use crate::replay::Replay;
use crate::size;
use allocator_core::adapt::Limit;
use allocator_core::{ConfigError, Configure, Control, ControlError, Device, SimDevice, Strategy};
use serde_json::Value;

/// All parameters of a strategy by name, defaults included. The map is sorted, so its JSON is canonical.
pub type Params = serde_json::Map<String, Value>;

/// Every strategy, by name.
pub static STRATEGIES: &[Entry] = &[
    entry::<strategy_arena::Arena>(),
    entry::<strategy_async_pool::AsyncPool>(),
    entry::<strategy_bfc::Bfc>(),
    entry::<strategy_binning::Binning>(),
    entry::<strategy_buckets::Buckets>(),
    entry::<strategy_buddy::Buddy>(),
    entry::<strategy_caching::Caching>(),
    entry::<strategy_cuda_async::CudaAsync>(),
    entry::<strategy_cupy::Cupy>(),
    entry::<strategy_direct::Direct>(),
    entry::<strategy_exact_cache::ExactCache>(),
    entry::<strategy_expandable::Expandable>(),
    entry::<strategy_pool::Pool>(),
    entry::<strategy_tlsf::Tlsf>(),
];

/// One line of the list.
#[derive(Debug)]
pub struct Entry {
    /// The name on the command line and in results.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Whether it runs only on devices with a stream-ordered pool.
    pub stream_ordered: bool,
    defaults: fn() -> Params,
    set: fn(&Params, &str, &str) -> Result<Params, String>,
    build: Build,
}

type Build = fn(Params, &mut dyn Device, MemoryLimit) -> Result<Box<dyn Replay>, ConfigError>;

/// Whether a strategy has to respect a memory limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryLimit {
    /// There is none and will be none.
    Never,
    /// The workload will set one.
    Later,
    /// This many bytes from the start.
    Now(u64),
}

/// What one strategy is to run with.
#[derive(Clone, Debug)]
pub struct Configured {
    /// The strategy.
    pub entry: &'static Entry,
    /// All its parameters.
    pub params: Params,
}

/// A parameter as the command line gives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Its name.
    pub key: String,
    /// Its value, of a type that only the strategy knows.
    pub value: String,
}

impl Entry {
    /// Every parameter with its default.
    pub fn defaults(&self) -> Params {
        (self.defaults)()
    }
}

impl Configured {
    /// The strategy's name, and what of its parameters is not the default.
    pub fn title(&self) -> String {
        let mut title = self.entry.name.to_string();
        for (key, value) in self.changed() {
            title.push_str(&format!(" {key}={}", written(key, value)));
        }
        title
    }

    /// The parameters that are not the defaults.
    pub(crate) fn changed(&self) -> impl Iterator<Item = (&str, &Value)> {
        let defaults = self.entry.defaults();
        let changed = self.params.iter().filter(move |&(key, value)| defaults.get(key) != Some(value));
        changed.map(|(key, value)| (key.as_str(), value))
    }

    /// The parameters in the form that results hold.
    pub(crate) fn params_json(&self) -> String {
        Value::Object(self.params.clone()).to_string()
    }

    /// A fresh strategy on `dev`, without a memory limit.
    pub fn strategy(&self, dev: &mut dyn Device) -> Result<Box<dyn Strategy>, ConfigError> {
        let strategy = self.build(dev, MemoryLimit::Never)?;
        Ok(strategy)
    }

    /// A fresh strategy on `dev`. One that has a memory limit of its own applies its own rules; any other is wrapped if
    /// it needs one.
    pub(crate) fn build(&self, dev: &mut dyn Device, limit: MemoryLimit) -> Result<Box<dyn Replay>, ConfigError> {
        (self.entry.build)(self.params.clone(), dev, limit)
    }
}

/// The strategies of `entries` with `settings` applied: each setting to those that know it. A setting of several values
/// makes a strategy of each, two such settings one of each pair.
pub fn configure(entries: &[&'static Entry], settings: &[Setting]) -> Result<Vec<Configured>, Error> {
    let mut configured: Vec<Configured> =
        entries.iter().map(|entry| Configured { entry, params: entry.defaults() }).collect();
    for Setting { key, value } in settings {
        if !configured.iter().any(|one| one.params.contains_key(key)) {
            return Err(Error::Usage(unknown_parameter(key, &configured)));
        }
        let mut changed: Vec<Configured> = Vec::new();
        for one in configured {
            let sets = match one.params.contains_key(key) {
                true => with_values(&one, key, value)?,
                false => vec![one.params.clone()],
            };
            changed.extend(sets.into_iter().map(|params| Configured { entry: one.entry, params }));
        }
        configured = changed;
    }
    // A setting may be given twice, and values may be written in two ways.
    let mut distinct: Vec<Configured> = Vec::new();
    for one in configured {
        if !distinct.iter().any(|other| other.entry.name == one.entry.name && other.params == one.params) {
            distinct.push(one);
        }
    }
    Ok(distinct)
}

/// The parameters of `one` with `text` as the value of one of them or, where that makes no sense but has commas, with
/// each part of it.
fn with_values(one: &Configured, key: &str, text: &str) -> Result<Vec<Params>, Error> {
    let set = |text: &str| {
        (one.entry.set)(&one.params, key, text)
            .map_err(|why| Error::Usage(format!("-p {key}={text}: {}: {why}", one.entry.name)))
    };
    // A type that takes any text leaves it to the strategy whether it means something.
    let makes_sense = |params: &Params| {
        let mut dev = SimDevice::new(DEFAULT_CAPACITY).with_stream_ordered();
        (one.entry.build)(params.clone(), &mut dev, MemoryLimit::Never).is_ok()
    };
    match set(text) {
        Ok(whole) if !text.contains(',') || makes_sense(&whole) => Ok(vec![whole]),
        // If its parts make no sense either, it is the whole that is refused, when it is built.
        Ok(whole) => {
            let parts: Result<Vec<Params>, _> = text.split(',').map(set).collect();
            let are_values = |parts: &Vec<Params>| !text.split(',').any(str::is_empty) && parts.iter().all(makes_sense);
            Ok(parts.ok().filter(are_values).unwrap_or_else(|| vec![whole]))
        }
        Err(_) if text.contains(',') => text.split(',').map(set).collect(),
        Err(why) => Err(why),
    }
}

/// A parameter's value as it may be given with `-p`. Numbers from 64 KiB on are taken for sizes where they are whole KiB.
pub fn written(key: &str, value: &Value) -> String {
    match value {
        Value::Null => "none".to_string(),
        Value::String(text) => text.clone(),
        Value::Number(number) if !counts_mib(key) && number.as_u64() >= Some(64 << 10) => {
            number.as_u64().map_or_else(|| number.to_string(), size::exact)
        }
        other => other.to_string(),
    }
}

fn counts_mib(key: &str) -> bool {
    key.ends_with("_mb")
}

fn unknown_parameter(key: &str, configured: &[Configured]) -> String {
    let mut text = format!("no selected strategy has a parameter '{key}'; there are:");
    for one in configured {
        let keys: Vec<&str> = one.params.keys().map(String::as_str).collect();
        let keys = if keys.is_empty() { "none".to_string() } else { keys.join(", ") };
        text.push_str(&format!("\n  {}: {keys}", one.entry.name));
    }
    text
}

/// The line of a strategy type. A strategy that is not in the list can be run by it too.
pub const fn entry<S: Configure + 'static>() -> Entry {
    Entry {
        name: S::NAME,
        about: S::ABOUT,
        stream_ordered: S::STREAM_ORDERED,
        defaults: defaults::<S>,
        set: set::<S>,
        build: build::<S>,
    }
}

fn defaults<S: Configure>() -> Params {
    to_map(&S::Params::default())
}

fn to_map(params: &impl serde::Serialize) -> Params {
    match serde_json::to_value(params) {
        Ok(Value::Object(map)) => map,
        // Not a struct with named fields: the tests refuse it.
        _ => Params::new(),
    }
}

/// `params` with one of them changed. The field's own type decides what a text means.
fn set<S: Configure>(params: &Params, key: &str, text: &str) -> Result<Params, String> {
    let counts_mib = counts_mib(key);
    for value in readings(&params[key], text, counts_mib) {
        let mut trial = params.clone();
        trial.insert(key.to_string(), value);
        if let Ok(params) = serde_json::from_value::<S::Params>(Value::Object(trial)) {
            return Ok(to_map(&params));
        }
    }
    Err(match to_map(&S::Params::default()).get(key) {
        _ if counts_mib => "it counts MiB: write a number without a unit, such as 128".to_string(),
        Some(Value::Bool(_)) => "write true or false".to_string(),
        Some(Value::Null) | None => "write a number, or 'none'".to_string(),
        // Of a few words, the type knows which.
        Some(Value::String(_)) => refused_word::<S>(params, key, text),
        Some(default) => format!("write a value like its default {}", written(key, default)),
    })
}

/// Why a word is none of those that a field takes.
fn refused_word<S: Configure>(params: &Params, key: &str, text: &str) -> String {
    let mut trial = params.clone();
    trial.insert(key.to_string(), Value::String(text.to_string()));
    let why = serde_json::from_value::<S::Params>(Value::Object(trial)).err();
    why.map_or_else(String::new, |why| why.to_string())
}

/// What `text` may mean for a field that holds `current`, likeliest first. A number of MiB is no number of bytes.
fn readings(current: &Value, text: &str, counts_mib: bool) -> Vec<Value> {
    let string = Value::String(text.to_string());
    if current.is_string() {
        return vec![string];
    }
    let literal = match text {
        "True" => Some(Value::Bool(true)),
        "False" => Some(Value::Bool(false)),
        "none" => Some(Value::Null),
        _ => serde_json::from_str(text).ok(),
    };
    let size = size::parse(text).ok().filter(|_| !counts_mib).map(Value::from);
    let mut readings: Vec<Value> = literal.into_iter().chain(size).collect();
    if !current.is_boolean() && !current.is_number() {
        readings.push(string);
    }
    readings.dedup();
    readings
}

fn build<S: Configure + 'static>(
    params: Params,
    dev: &mut dyn Device,
    limit: MemoryLimit,
) -> Result<Box<dyn Replay>, ConfigError> {
    let params = serde_json::from_value(Value::Object(params)).map_err(|why| ConfigError(why.to_string()))?;
    let mut strategy = S::new(params, &dev.info())?;
    let bytes = match limit {
        MemoryLimit::Never => return Ok(Box::new(strategy)),
        MemoryLimit::Later => None,
        MemoryLimit::Now(bytes) => Some(bytes),
    };
    match strategy.control(dev, Control::Limit(bytes)) {
        Ok(()) => Ok(Box::new(strategy)),
        Err(ControlError::Unsupported) => Ok(Box::new(Limit::new(strategy, bytes))),
        Err(why) => Err(ConfigError(format!("a limit of {} bytes: {why}", bytes.unwrap_or(u64::MAX)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator_core::{AllocError, Block, DeviceInfo, FreeError, Request, Span, StreamId};
    use serde::{Deserialize, Serialize};
    use std::path::Path;

    #[test]
    fn names_are_unique_and_sorted() {
        for pair in STRATEGIES.windows(2) {
            assert!(pair[0].name < pair[1].name, "{} before {}", pair[0].name, pair[1].name);
        }
    }

    #[test]
    fn every_folder_is_listed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../strategies");
        let mut folders: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with('.'))
            .collect();
        folders.sort();
        let names: Vec<&str> = STRATEGIES.iter().map(|entry| entry.name).collect();
        assert_eq!(folders, names);
    }

    #[test]
    fn every_strategy_says_what_it_is() {
        for entry in STRATEGIES {
            assert!(!entry.about.is_empty() && entry.about.len() <= 100, "{}: '{}'", entry.name, entry.about);
        }
    }

    #[test]
    fn parameters_round_trip() {
        for entry in STRATEGIES {
            let defaults = entry.defaults();
            for (key, value) in &defaults {
                let text = written(key, value);
                let again =
                    (entry.set)(&defaults, key, &text).unwrap_or_else(|why| panic!("{} {key}: {why}", entry.name));
                assert_eq!(again, defaults, "{} {key}={text}", entry.name);
            }
        }
    }

    #[test]
    fn every_strategy_builds_from_its_defaults() {
        for entry in STRATEGIES {
            let mut dev = SimDevice::new(1 << 30).with_stream_ordered();
            let one = Configured { entry, params: entry.defaults() };
            for limit in [MemoryLimit::Never, MemoryLimit::Later, MemoryLimit::Now(1 << 20)] {
                one.build(&mut dev, limit).unwrap_or_else(|why| panic!("{}: {why}", entry.name));
            }
            let is_built = one.build(&mut SimDevice::new(1 << 30), MemoryLimit::Never).is_ok();
            assert_eq!(is_built, !entry.stream_ordered, "{} on a device without a stream-ordered pool", entry.name);
        }
    }

    /// A strategy with a parameter of each type.
    struct Typed;

    #[derive(Serialize, Deserialize)]
    struct TypedParams {
        bytes: u64,
        span_mb: Option<u64>,
        fraction: f64,
        on: bool,
        text: String,
        maybe: Option<u64>,
        words: Option<String>,
        list: Vec<u32>,
    }

    impl Default for TypedParams {
        fn default() -> Self {
            let text = String::new();
            TypedParams {
                bytes: 512,
                span_mb: None,
                fraction: 1.0,
                on: false,
                text,
                maybe: None,
                words: None,
                list: vec![1],
            }
        }
    }

    impl Strategy for Typed {
        fn allocate(&mut self, _: &mut dyn Device, _: Request) -> Result<Block, AllocError> {
            Err(AllocError::OutOfMemory)
        }
        fn free(&mut self, _: &mut dyn Device, _: Block) -> Result<(), FreeError> {
            Ok(())
        }
        fn record_stream(&mut self, _: &mut dyn Device, _: &Block, _: StreamId) -> Result<(), AllocError> {
            Ok(())
        }
        fn trim(&mut self, _: &mut dyn Device, _: u64) -> Result<u64, AllocError> {
            Ok(0)
        }
        fn inspect(&self, _: &mut dyn FnMut(Span)) {}
    }

    impl Configure for Typed {
        const NAME: &'static str = "typed";
        const ABOUT: &'static str = "A parameter of each type.";
        type Params = TypedParams;
        fn new(_: TypedParams, _: &DeviceInfo) -> Result<Self, ConfigError> {
            Ok(Typed)
        }
    }

    static TYPED: Entry = entry::<Typed>();

    fn given(settings: &[(&str, &str)]) -> Result<Params, Error> {
        let settings: Vec<Setting> =
            settings.iter().map(|(key, value)| Setting { key: key.to_string(), value: value.to_string() }).collect();
        configure(&[&TYPED], &settings).map(|mut configured| configured.remove(0).params)
    }

    #[test]
    fn the_field_decides_what_a_text_means() {
        let params = given(&[
            ("bytes", "2MiB"),
            ("span_mb", "128"),
            ("fraction", "0.8"),
            ("on", "True"),
            ("text", "expandable_segments:True,max_split_size_mb:128"),
            ("maybe", "128"),
            ("words", "4"),
            ("list", "[1,2]"),
        ])
        .unwrap();
        assert_eq!(
            Value::Object(params).to_string(),
            r#"{"bytes":2097152,"fraction":0.8,"list":[1,2],"maybe":128,"on":true,"span_mb":128,"text":"expandable_segments:True,max_split_size_mb:128","words":"4"}"#
        );
        assert_eq!(given(&[("maybe", "128"), ("maybe", "none")]).unwrap()["maybe"], Value::Null);
        assert_eq!(given(&[("text", "none")]).unwrap()["text"], "none");
    }

    #[test]
    fn a_bad_value_names_itself_its_strategy_and_the_way_out() {
        for (key, value, way_out) in [
            ("bytes", "-5", "like its default 512"),
            ("bytes", "none", "like its default 512"),
            ("on", "2", "true or false"),
            ("fraction", "", "like its default 1.0"),
            ("maybe", "x", "'none'"),
            ("span_mb", "128MiB", "counts MiB"),
            ("span_mb", "1k", "counts MiB"),
        ] {
            let error = given(&[(key, value)]).unwrap_err();
            assert_eq!(error.code(), crate::exit::USAGE);
            assert!(error.to_string().starts_with(&format!("-p {key}={value}: typed: ")), "{error}");
            assert!(error.to_string().contains(way_out), "{error}");
        }
    }

    #[test]
    fn several_values_make_a_strategy_of_each() {
        let titles = |settings: &[(&str, &str)]| -> Vec<String> {
            let setting = |&(key, value): &(&str, &str)| Setting { key: key.to_string(), value: value.to_string() };
            let settings: Vec<Setting> = settings.iter().map(setting).collect();
            configure(&[&TYPED], &settings).unwrap().iter().map(Configured::title).collect()
        };
        assert_eq!(titles(&[("bytes", "2MiB,512,1536KiB")]), ["typed bytes=2MiB", "typed", "typed bytes=1536KiB"]);
        assert_eq!(
            titles(&[("on", "false,true"), ("maybe", "none,2048")]),
            ["typed", "typed maybe=2048", "typed on=true", "typed maybe=2048 on=true"]
        );
        assert_eq!(titles(&[("bytes", "64KiB,65536")]), ["typed bytes=64KiB"], "one value, written in two ways");
        assert_eq!(titles(&[("span_mb", "2048")]), ["typed span_mb=2048"], "a number of MiB");
        let [caching, tlsf] =
            ["caching", "tlsf"].map(|name| STRATEGIES.iter().find(|entry| entry.name == name).unwrap());
        let search = Setting { key: "search".to_string(), value: "min_time,min_memory".to_string() };
        assert_eq!(configure(&[tlsf], &[search]).unwrap().len(), 2, "a text that the strategy reads");
        for (conf, values) in [
            ("expandable_segments:True,max_split_size_mb:128", 1),
            ("max_split_size_mb:64,max_split_size_mb:-1", 1),
            ("expandable_segments:True,,", 1),
            ("roundup_power2_divisions:[256:1,512:3,>:4]", 1),
        ] {
            let setting = Setting { key: "conf".to_string(), value: conf.to_string() };
            assert_eq!(configure(&[caching], &[setting]).unwrap().len(), values, "{conf}");
        }
        // A text or a list is one value.
        assert_eq!(titles(&[("words", "a,b"), ("list", "[1,2]")]), ["typed list=[1,2] words=a,b"]);
        for (key, value, part) in [("bytes", "512,x", "x"), ("on", "true,", "")] {
            let error = given(&[(key, value)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("-p {key}={part}: typed: ")), "{error}");
        }
    }

    #[test]
    fn an_unknown_key_lists_the_known_ones() {
        let error = given(&[("byte", "1")]).unwrap_err();
        assert_eq!(error.code(), crate::exit::USAGE);
        assert!(error.to_string().contains("typed: bytes, fraction, list, maybe, on, span_mb, text, words"), "{error}");
    }
}
