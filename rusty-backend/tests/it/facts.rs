//! Facts: described targets, choices, the host's CPU, memory accounts, tensors over host memory.

use rusty_backend::memory::Accounts;
use rusty_backend::*;
use rusty_loader::SharedBytes;

#[test]
fn described_targets_hold_together() {
    let names = Target::names();
    for wanted in [
        "h200", "rtx4090", "m2", "rdna3", "llvmpipe", "vulkan", "metal", "dx12", "webgpu", "avx2",
        "avxvnni", "avx512", "neon", "neondot",
    ] {
        assert!(names.iter().any(|n| n == wanted), "{wanted} is missing");
    }
    for name in names {
        let target = Target::named(&name).expect("a listed name");
        assert_eq!(target.name, name);
        assert_eq!(target.is_cpu(), target.language == Language::Native);
        assert_eq!(target.cuda_arch > 0, target.family == Family::Cuda);
        assert!(target.plane_size <= target.plane_size_max);
        assert!(target.max_binding_bytes <= target.max_buffer_bytes);
        assert!(target.binding_align.is_power_of_two());
        for size in [target.plane_size, target.plane_size_max] {
            assert!(size.is_power_of_two(), "{name}");
        }
        assert!(!target.plane_ops || target.plane_size >= 8, "{name}");
    }
    assert_eq!(Target::named("no such thing"), None);
    let tiles = |name| Target::named(name).map(|t| (t.cuda_arch, t.matrix_tiles.len()));
    assert_eq!(tiles("cuda:sm_75"), Some((75, 0)));
    assert_eq!(tiles("cuda:sm_120"), Some((120, 1)));
    assert_eq!((tiles("cuda:sm_35"), tiles("cuda:90")), (None, None));
}

#[test]
fn choices_read_back_as_written() {
    for choice in DeviceChoice::ALL.into_iter().chain([DeviceChoice::Auto]) {
        assert_eq!(choice.to_string().parse::<DeviceChoice>().unwrap(), choice);
    }
    assert_eq!(
        "cuda:3".parse::<DeviceChoice>().unwrap(),
        DeviceChoice::Cuda(3)
    );
    for wrong in ["", "gpu", "cuda:", "cuda:x", "CPU"] {
        let error = wrong.parse::<DeviceChoice>().unwrap_err();
        assert!(error.to_string().contains("use auto, cpu"), "{error}");
    }
}

#[test]
fn every_kind_of_device_is_listed_or_explained() {
    let found = discover();
    for word in ["cpu", "vulkan", "metal", "dx12", "cuda"] {
        let mut of_kind = found.iter().filter(|d| d.choice == word).peekable();
        assert!(of_kind.peek().is_some(), "{word} is not listed");
        for info in of_kind {
            match &info.absent {
                Some(reason) => assert!(!reason.is_empty(), "{word}"),
                None => assert!(!info.name.is_empty() && !info.weights.is_empty(), "{word}"),
            }
        }
    }
}

#[test]
fn an_absent_device_says_what_there_is() {
    let absent = if cfg!(target_vendor = "apple") {
        "dx12"
    } else {
        "metal"
    };
    let error = Device::open(&absent.parse().unwrap(), None).unwrap_err();
    assert!(matches!(error, Error::Absent { .. }));
    let text = error.to_string();
    assert!(
        text.contains(absent) && text.contains("available: cpu"),
        "{text}"
    );
}

#[test]
fn the_cpu_states_its_facts() {
    let device = Device::open(&DeviceChoice::Cpu, Some(3)).unwrap();
    let target = device.target();
    assert!(target.is_cpu() && target.threads == 3 && target.unified_memory);
    assert!(target.memory_bytes > 64 << 20);
    let sets = CpuDevice::runnable();
    assert_eq!(sets.last(), Some(&Isa::Scalar));
    assert!(sets.contains(&target.isa));
    let all = CpuDevice::new(None).target().threads;
    let may_run_on = std::thread::available_parallelism().unwrap().get();
    assert!((1..=may_run_on).contains(&all), "{all} of {may_run_on}");
}

#[test]
fn accounts_refuse_beyond_their_limit_and_forget_what_is_dropped() {
    let book = Accounts::new("test", 1000);
    let weights = book.charge(Owner::Weights, 600).unwrap();
    let kv = book.charge(Owner::Kv, 300).unwrap();
    let text = book.charge(Owner::Arena, 101).unwrap_err().to_string();
    assert!(
        text.contains("arena asked for 101 bytes, 900 of 1000"),
        "{text}"
    );
    assert!(book.charge(Owner::Arena, u64::MAX).is_err());
    drop(weights);
    let usage = book.usage();
    assert_eq!(usage.by_owner, [(Owner::Kv, 300)]);
    assert_eq!((usage.total, usage.peak, usage.limit), (300, 900, 1000));
    drop(kv);
    assert_eq!(book.usage().total, 0);
}

#[test]
fn host_tensors_are_aligned_and_stay_where_they_are() {
    let cpu = Device::open(&DeviceChoice::Cpu, None).unwrap();
    let copy = UnifiedTensor::aligned_copy(&[1, 2, 3]);
    let bytes = copy.host_bytes().unwrap();
    assert_eq!(bytes, [1, 2, 3]);
    assert_eq!(bytes.as_ptr() as usize % 64, 0);
    assert_eq!(UnifiedTensor::zeroed(65).host_bytes().unwrap(), [0; 65]);
    let shared = UnifiedTensor::from_shared(SharedBytes::from_vec(vec![7; 10]));
    let moved = shared.to_device(&cpu, Owner::Weights, "w").unwrap();
    let same = |t: &UnifiedTensor| t.host_bytes().unwrap().as_ptr();
    assert_eq!(same(&shared), same(&moved));
}
