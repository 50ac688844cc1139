#include "horon/tests/support/fake_device.h"

horon::test::FakeMemory horon::test::memory_of_worlds() { return FakeMemory::Enqueued; }
