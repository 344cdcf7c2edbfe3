from tests.support import patient_pilot

patient_pilot.install()
